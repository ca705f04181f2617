"""The frontend: text, names, ops and types. It knows no tokens, no torch and no sockets; see
`lmprog.lang.program`.
"""
