"""Pools: memory that is kept for reuse, for each stream.

Where to read: `pool` (device memory) has a hit, `engine` the steps of a miss, which `pinned_pool` (page-locked memory) shares.
`free_lists` knows the chunks and who may use their free bytes: `size_bins` finds a block by size, `stream_cache` has those of one
stream. `cross_stream` is the one that calls the driver.
"""
