"""Key/value events."""
