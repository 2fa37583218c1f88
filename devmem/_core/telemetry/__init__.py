"""Records of what happened: counts of bytes and copies, the log of allocations, the trace."""
