"""Device arrays from files and to files, by way of the ring, in bounded memory."""

from .copies import load, path_of, save
from .named import ArrayFile, holds_several, load_many
from .named import save as save_many

__all__ = ["ArrayFile", "holds_several", "load", "load_many", "path_of", "save", "save_many"]
