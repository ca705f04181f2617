"""A second tier below the pages of the pool: where evicted keys and values go and come back from.

`second_tier` keeps the index, and decides what is read, and what is written and when; a
`PageStore` keeps contents, `disk_store` in a file that outlives the runtime. `shared_pages` keeps
those of several runtimes; `tier_questions` asks what others have stored.
"""
