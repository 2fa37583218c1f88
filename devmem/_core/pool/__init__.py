"""Pools: memory that is kept for reuse, for each stream."""
