"""What a program would do, found by running it against placeholders instead of a model.

`double` runs it, `graph` shows its ops and how they hang together, `prompts` has the runtime write and count its exact
prompts, `preview` and `explain` show these. Nothing here generates or scores anything.

A rehearsal follows one path: generations give placeholders, a choice its first option. A program that decides on
values may go elsewhere when it is run.
"""
