"""Streams: events of a run, text piece by piece, typed values while they are written."""
