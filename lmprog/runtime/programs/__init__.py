"""Programs: branches and their ops, calls from their arrival to their one final reply."""
