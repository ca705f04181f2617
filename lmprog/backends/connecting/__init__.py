"""What a program runs on, by name or by default: a runtime that is started for it, those at given
addresses, or a server over HTTP. The backends themselves do not know this room.
"""
