"""Arrays that move from the device to the host and to disk while nothing uses them."""
