"""The ops that a program appends to a branch, as immutable values, and typed generations."""
