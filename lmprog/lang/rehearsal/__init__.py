"""What a program would do, found by running it against placeholders instead of a model.

`double` runs it, `graph` shows its ops and how they hang together, `prompts` has the runtime write
and count its exact prompts, `preview` and `explain` show these, `drawing` and `svg` draw it.
Nothing of these generates or scores anything; `ahead` has the text computed that every run begins
with.

A rehearsal follows one path: generations give placeholders, a choice its first option. A program
that decides on values may go elsewhere when it is run.
"""
