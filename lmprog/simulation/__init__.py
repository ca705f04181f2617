"""The whole core in one thread and virtual time, on a fake model that reads its pages: see `world`
and `main`.
"""
