"""Other ways to do the same work, on the same checkpoint."""
