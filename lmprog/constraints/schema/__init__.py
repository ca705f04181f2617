"""Compiles JSON Schema into a net: exactly, or with an error that names the keyword and the path.

The entry point is `entry.py`. What is frequent is read by a kernel (`frequent.py`); `build.py`
reads everything. There a schema is expanded into alternatives without applicators (`expand.py`,
`negate.py`). Each is a set of facets per JSON type (`flat.py`), from which nodes are built
(`strings.py`, `numbers.py`, `arrays.py`, `objects.py`). Recursive schemas become recursive nets.
"""
