"""What a program would do, found by running it with placeholders instead of a model.

`rehearsing` is the door and runs it, `op_graph` and `graph` show its ops and their dependencies,
`prompts` lets the runtime render and count its exact prompts, `preview` and `cost` present these,
`drawing` writes the graph for Graphviz. None of them generates or scores anything; `rehearsing`
also computes the common beginning of all runs in advance.

A rehearsal follows one path: generations return placeholders, a select its first option. A program
that branches on values may take another path in a real run.
"""
