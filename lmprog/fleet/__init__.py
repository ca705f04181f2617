"""Many runtimes as one: programs are spread over replicas, and survive the death of one.

Integers, texts and wire messages only. `placement` chooses, and knows who was sent which
prefix, `program_log` can build a program again, `router` puts them together without threads
or clocks of its own, `members` says which replicas there are, `fleet_channel` is the client's end.
"""
