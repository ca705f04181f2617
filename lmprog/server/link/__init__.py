"""The asyncio end of the wire: its connection, the calls of each request, and how they went.

Knows messages and numbers; knows no HTTP.
"""
