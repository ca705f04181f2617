"""JSON Schema -> net, by structure: exact, or refused with the keyword and the path.

`build.py` is the entry. A schema is expanded into alternatives without applicators (`expand.py`,
`negate.py`), each a value of facets per JSON type (`flat.py`), and those are built into nodes
(`strings.py`, `numbers.py`, `arrays.py`, `objects.py`). Recursive schemas become recursive nets.
"""
