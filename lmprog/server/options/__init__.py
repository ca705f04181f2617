"""The options of `lmprog serve`: their table, and where their values come from."""
