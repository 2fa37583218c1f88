"""Allocations, the queue that frees dropped memory later, page locks, and running out of memory."""
