"""The processes of one model's ranks: started, found, watched, ended together.

`leading` is rank 0's side, within the runtime; `rank_main` is the process of any other rank;
`lifelines` tell each of them that the other has ended. What ranks compute is the affair of
`engine.sharded`.
"""
