"""Memory resources, and adaptors that stand over others."""
