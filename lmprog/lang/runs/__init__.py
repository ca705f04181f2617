"""Running programs: the decorator, the executor, runs and their results."""
