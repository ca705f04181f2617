"""What a program runs on, by name or by default: a runtime that is started for it, those at given
addresses, or a server over HTTP. No other room of backends knows this one.
"""
