"""Device arrays, their views and creation, and host arrays in memory that the driver made."""
