"""Many arrays in one go."""

from .down import download_many
from .up import upload_many

__all__ = ["download_many", "upload_many"]
