"""`cudadrv.devicearray`, where older releases had it."""

from .cudadrv.devicearray import *  # noqa: F403
