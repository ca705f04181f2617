"""Which blocks of tokens the cache has, told to other people's routers in vLLM's messages.

`block_record` follows the prefix tree and makes the messages, `kv_publisher` sends what happened in
a turn together with the turn's replies, and again to those who missed it. Nothing of it
is loaded or called where no address was given.
"""
