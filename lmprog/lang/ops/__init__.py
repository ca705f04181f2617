"""What a program asks of a branch, as immutable values, and the Python types that it may ask
for.
"""
