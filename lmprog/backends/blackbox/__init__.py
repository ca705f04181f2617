"""Programs on APIs that take a prompt and return text. Branches live in the client, and every call
is a request.

`api_backend` runs branches on an event loop, `transcript` makes prompts of them, `call_answers`
decides how a call is answered (from speculated text, by one request, or by several), and
`speculation` keeps the text that a request generated past its stop string. An `Api` (see `api`) is
one kind of service. HTTP is left to the transports.
"""
