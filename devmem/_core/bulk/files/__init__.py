"""Device arrays from files and to files, by way of the ring, in bounded memory."""

from .copies import load, save

__all__ = ["load", "save"]
