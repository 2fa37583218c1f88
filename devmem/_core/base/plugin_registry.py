"""The plugins that the settings in force allow."""

from __future__ import annotations

from ... import plugins
from .config import settings


def registry() -> plugins.Registry:
    """The plugins, with the block list of the settings in force."""
    plugins.registry.configure(settings().block_plugins)
    return plugins.registry
