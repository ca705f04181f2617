"""Programs on APIs that take a prompt and give a text: branches live here, in the client, and every
call is a request.

`channel` runs the ops of branches, `transcript` is what stands in one, `answering` decides how a
call is answered (from what was said already, by one request, by several), `speculation` is what a
request said beyond its stop. An `Api` of `asking` is one kind of service; those that exist are
beside this package. Nothing here knows HTTP.
"""
