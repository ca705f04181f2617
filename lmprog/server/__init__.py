"""The HTTP gateway: one more client of the runtime's wire, which speaks OpenAI's and SGLang's
dialects to others.

It holds no model and no tokenizer. `link` is its end of the wire, `gateway` what every route needs,
`app` the list of route modules, `run` the server around it.
"""
