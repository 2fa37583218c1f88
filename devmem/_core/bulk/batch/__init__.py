"""Many arrays in one go."""

from .download import download_many
from .upload import upload_many

__all__ = ["download_many", "upload_many"]
