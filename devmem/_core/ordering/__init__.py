"""Streams, events, and what must live until a stream has completed a piece of work."""
