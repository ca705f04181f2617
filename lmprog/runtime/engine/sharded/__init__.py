"""Tensor parallelism: one model over several processes, its ranks, which compute steps together.

`shard` says which part of every weight a rank has, `rank_group` is what ranks say to each other,
`sharded_engine` computes with it: the decoders, the engine of rank 0 and what the others do.
Who starts the ranks and watches them is the affair of `runtime.ranks`.
"""
