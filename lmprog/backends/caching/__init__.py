"""A backend that asks another one only what a folder of replies does not have."""
