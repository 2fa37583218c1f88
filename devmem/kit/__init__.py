"""Bricks for backend authors."""
