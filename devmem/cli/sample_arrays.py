"""Sample data of matplotlib as arrays of many layouts, among them those that are hard to transfer."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .array_files import Source, Unreadable, sources

Array = NDArray[Any]


def samples() -> Iterator[Source]:
    """Named arrays: an elevation model, a map of heights and depths, share prices and a head scan.

    Raises
    ------
    Unreadable
        matplotlib, whose sample data these are, is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise Unreadable(
            "the sample data comes with matplotlib, which is not installed: pip install 'devmem-arrays[demo]', or name files"
        )
    for name, array in _arrays():
        yield Source(name, partial(_as_sample, array))


def _arrays() -> Iterator[tuple[str, Array]]:
    elevation = _load("jacksboro_fault_dem.npz", "elevation")
    spacing = _load("jacksboro_fault_dem.npz", "dx")
    heights = _load("topobathy.npz", "topo")
    prices = _load("goog.npz", "price_data")
    scan = _scan()

    yield "elevation", elevation
    yield "elevation, tiled", np.tile(elevation, (8, 8))
    yield "elevation, Fortran order", np.asfortranarray(elevation)
    yield "elevation, transposed", elevation.T
    yield "elevation, window", elevation[50:-50, 60:-60]
    yield "elevation, every third row", elevation[::3]
    yield "elevation, every other column", elevation[:, 1::2]
    yield "elevation, upside down", elevation[::-1]
    yield "elevation, both ways reversed", elevation[::-1, ::-2]
    yield "elevation, one row repeated", np.broadcast_to(elevation[0], elevation.shape)
    yield "elevation, one column repeated", np.broadcast_to(elevation[:, :1], elevation.shape)
    yield "elevation, in blocks", elevation[:344, :400].reshape(43, 8, 50, 8).transpose(0, 2, 1, 3)
    yield "elevation, above its mean", elevation > elevation.mean()
    yield "elevation, half precision", elevation.astype(np.float16)
    yield "elevation, big-endian", elevation.astype(">i4")
    yield "elevation, spectrum", np.fft.fft2(elevation)
    yield "elevation, no rows", elevation[:0]
    yield "elevation, off by a byte", _off_by_a_byte(elevation)
    yield "spacing", spacing
    yield "heights", heights
    yield "heights, roots (NaN below the sea)", _roots(heights)
    yield "heights, as payloads of NaN", _nans(heights)
    yield "prices", prices
    yield "prices, newest first", prices[::-1]
    yield "prices, padded records", prices.astype(_padded(prices.dtype))
    yield "prices, two fields of records", prices[["close", "date"]]
    yield "prices, dates in records", prices["date"]
    yield "prices, dates in nanoseconds", prices["date"].astype("M8[ns]")
    yield "prices, volume big-endian", prices["volume"].astype(">i8")
    yield "scan", scan
    yield "scan, quarters", scan.reshape(2, 128, 2, 128).swapaxes(1, 2)[:, ::-1]


def _as_sample(array: Array) -> tuple[Array, str]:
    return array, "sample"


def _load(file: str, member: str) -> Array:
    for source in sources(_path(file)):
        if source.name.endswith(f":{member}"):
            return np.asarray(source.load()[0])
    raise Unreadable(f"{file}: no member {member!r}")


def _path(file: str) -> Path:
    # Imported late: importing matplotlib takes a good part of a second, and most commands do not need it.
    from matplotlib import cbook

    return Path(str(cbook.get_sample_data(file, asfileobj=False)))


def _scan() -> Array:
    with gzip.open(_path("s1045.ima.gz")) as file:
        return np.frombuffer(file.read(), np.uint16).reshape(256, 256)


def _roots(heights: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sqrt(heights.astype(np.float64)))


def _nans(heights: Array) -> Array:
    """Single precision NaNs, some of them signalling, each with the bits of a height as its payload."""
    bits = np.ascontiguousarray(heights).view(np.uint32)
    return np.asarray((bits | np.uint32(0x7F800001)).view(np.float32))


def _padded(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same record in single precision, aligned as in C, with padding between and after the fields."""
    return np.dtype(
        [(name, np.dtype("f4") if dtype[name] == "f8" else dtype[name]) for name in dtype.names or ()], align=True
    )


def _off_by_a_byte(array: Array) -> Array:
    """The same array at an odd address, as members of an archive often are."""
    room = np.empty(array.nbytes + 1, np.uint8)
    moved = room[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved
