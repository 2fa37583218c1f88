"""Files that hold several arrays by name: .safetensors files, one or several of a model, and .npz archives.

Of each array it is known where its elements are, so it is read by the same way as a .npy file, in blocks through page-locked
slots; small ones that are asked for together are read to the host and copied in one block. Arrays of compressed archives are
decoded on the host.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader, FileIO
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from ....spi.errors import LayoutError
from ...arrays.ndarray import DeviceNDArray
from ...base.device_handle import CurrentDevice
from ...base.layout import check_size, contiguous_strides
from ...base.shown import html_table
from ...device.device import DeviceLike, open_device_of
from ...ordering.event import StreamLike
from ..batch import upload_many
from ..batch.tree import Tree, flatten, rebuild
from . import npy, npz, safetensors
from .copies import load_elements, path_of, source_of, store_elements
from .disk import OpenFile, Version, open_file, replacing
from .npy import Elements

#: Arrays of fewer bytes are read to the host and uploaded together.
SMALL = 1 << 20

SAFETENSORS, SHARDS, NPZ = ".safetensors", ".safetensors.index.json", ".npz"


class _Place(NamedTuple):
    """An array in a version of a file: its elements, or None of one that is compressed under this name."""

    path: str
    elements: Elements | None
    name: str
    version: Version

    def in_order(self) -> tuple[str, int]:
        """Sorts arrays as they lie in their files; those that are compressed last."""
        return self.path, sys.maxsize if self.elements is None else self.elements.start


class ArrayFile(Mapping[str, DeviceNDArray[Any]]):
    """The arrays of a file by name, each of which is loaded when it is asked for; made by ``devmem.load(path, lazy=True)``.

    ``dict(arrays)`` loads all. An array that is asked for twice is loaded twice: keep it. The header is read once: a file
    that was replaced or written since raises LayoutError.

    Attributes
    ----------
    path : str
        The file, or the index of several.
    metadata : dict of str
        What a .safetensors file says besides its arrays.

    Examples
    --------
    >>> dm.save({"w": dm.ones(3)}, "model.safetensors", metadata={"epoch": "3"})
    >>> model = dm.load("model.safetensors", lazy=True)
    >>> list(model), model.metadata
    (['w'], {'epoch': '3'})
    """

    def __init__(self, path: str, stream: StreamLike = 0, device: DeviceLike = None) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self._stream = stream
        self._device = open_device_of(device).device
        self._places = self._index()

    def __repr__(self) -> str:
        return f"<{len(self)} arrays of {self.path}>"

    def _repr_html_(self) -> str:
        places = ((name, place.elements) for name, place in self._places.items())
        rows = [(name, at.shape, at.dtype) if at is not None else (name, "compressed", "") for name, at in places]
        return html_table(("name", "shape", "dtype"), rows, repr(self).strip("<>"))

    # Which one it is: a mapping compares its values, and all of them would be copied to the device for that.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> DeviceNDArray[Any]:
        return self.load([name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:  # not by loading it
        return name in self._places

    def load(self, names: Iterable[str] | None = None) -> dict[str, DeviceNDArray[Any]]:
        """Several arrays, or all: read in the order in which they lie in the file, and returned as they were named.

        Raises
        ------
        KeyError
            No array has one of these names.
        """
        wanted = list(self) if names is None else list(names)
        places = [self._place(name) for name in wanted]
        loaded = _load(places, self._stream, self._device)
        return dict(zip(wanted, loaded, strict=True))

    def _place(self, name: str) -> _Place:
        found = self._places.get(name)
        if found is None:
            near = difflib.get_close_matches(name, self, 3) if isinstance(name, str) else []
            known = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(list(self)[:8]) or 'none'}"
            raise KeyError(f"{self.path} has no array {name!r}: {known}")
        return found

    def _index(self) -> dict[str, _Place]:
        if self.path.endswith(SHARDS):
            files = safetensors.shards(self.path)
            parts = {file: self._safetensors(str(file)) for file in dict.fromkeys(files.values())}
            missing = [name for name, file in files.items() if name not in parts[file]]
            if missing:
                raise LayoutError(
                    f"{self.path}: {files[missing[0]]} has no array {missing[0]!r}, which the index has there"
                )
            return {name: parts[file][name] for name, file in files.items()}
        if self.path.endswith(SAFETENSORS):
            return self._safetensors(self.path)
        with open_file(self.path) as file, _reader(file) as reader:
            version = file.version()
            entries = npz.read_index(file, reader)
            _check(file, entries.values())
        return {name: _Place(self.path, elements, name, version) for name, elements in entries.items()}

    def _safetensors(self, path: str) -> dict[str, _Place]:
        with open_file(path) as file, _reader(file) as reader:
            version = file.version()
            found, metadata = safetensors.read_index(file, reader)
        self.metadata |= metadata
        return {name: _Place(path, elements, name, version) for name, elements in found.items()}


def holds_several(path: str) -> bool:
    """Whether a file holds arrays by name, as its own name says."""
    return path.endswith((SAFETENSORS, SHARDS, NPZ))


def load_many(tree: Tree, stream: StreamLike, device: DeviceLike) -> Tree:
    """The same structure with the array of each .npy file, or the dict of each file with several; see `devmem.load_many`."""
    leaves, _, flat = flatten(tree)
    loaded = _load_files(list(map(path_of, leaves)), stream, device)
    return loaded if flat else rebuild(tree, iter(loaded))


def _load_files(paths: list[str], stream: StreamLike, device: DeviceLike) -> list[Any]:
    opened = open_device_of(device)
    places: list[_Place] = []
    parts: list[tuple[slice, list[str] | None]] = []
    for path in paths:
        begin = len(places)
        if holds_several(path):
            several = ArrayFile(path, stream, device)
            places += several._places.values()
            parts.append((slice(begin, len(places)), list(several)))
        else:
            with open_file(path) as file, _reader(file) as reader:
                version = file.version()
                elements = npy.read_header(reader, path)
                _check(file, [elements])
            places.append(_Place(path, elements, "", version))
            parts.append((slice(begin, len(places)), None))
    arrays = _load(places, stream, opened.device)
    return [arrays[part][0] if names is None else dict(zip(names, arrays[part], strict=True)) for part, names in parts]


def save(arrays: Mapping[str, object], path: object, metadata: Mapping[str, str] | None) -> None:
    """Write device arrays to a file by name; see `devmem.save`."""
    text = path_of(path)
    if not text.endswith((SAFETENSORS, NPZ)):
        raise LayoutError(f"save({text!r}): a dict of arrays goes to a file named {SAFETENSORS} or {NPZ}")
    if metadata is not None and not text.endswith(SAFETENSORS):
        raise LayoutError(f"save(metadata=): {text} has none, only {SAFETENSORS} files have")
    for part in (arrays, metadata or {}, (metadata or {}).values()):
        for name in part:
            if not isinstance(name, str):
                raise TypeError(f"save(): names and metadata are text, not {name!r}")
    sources = {name: source_of(array) for name, array in arrays.items()}
    if text.endswith(NPZ):
        with replacing(text) as (file, _):
            npz.write(file, sources)
        return
    header, offsets = safetensors.make_index(sources, metadata or {})
    with replacing(text) as (file, temporary):
        file.write(header, 0)
        for name, start in offsets.items():
            store_elements(sources[name], file, temporary, start)


def _load(places: list[_Place], stream: StreamLike, device: DeviceLike) -> list[DeviceNDArray[Any]]:
    """Arrays from anywhere, in this order; each file is opened once more, and read from its beginning to its end.

    LayoutError if a file is not what it was when its header was read: then no array of it is returned.
    """
    found: dict[int, Any] = {}
    small: list[int] = []
    hosts: list[Any] = []
    order = sorted(range(len(places)), key=lambda at: places[at].in_order())
    for path, numbers in groupby(order, key=lambda at: places[at].path):
        with open_file(path) as file:
            part = _Part(file)
            for at in numbers:
                file.check_version(places[at].version)
                elements = places[at].elements
                if elements is None:
                    hosts.append(npz.read_compressed(path, places[at].name))
                    small.append(at)
                elif check_size(elements.shape, elements.dtype.itemsize) < SMALL:
                    hosts.append(part.read(elements))
                    small.append(at)
                else:
                    # The next one is read while the last block of this one is copied.
                    found[at] = load_elements(file, elements, stream, device, waits=False)
    found.update(zip(small, upload_many(hosts, stream, device), strict=True))
    if not stream:
        opened = open_device_of(device)
        with CurrentDevice(opened.handle) as driver:
            driver.stream_synchronize(opened.streams.stream_of(stream).handle)
            opened.completions.poll()
    return [found[at] for at in range(len(places))]


class _Part:
    """Small arrays of a file, which is read a piece at a time: most lie one behind the other."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._start = 0
        self._bytes = np.empty(0, np.uint8)

    def read(self, elements: Elements) -> Any:
        """An array in host memory that is not changed any more."""
        shape, dtype, start = elements.shape, elements.dtype, elements.start
        nbytes = check_size(shape, dtype.itemsize)
        if start < self._start or start + nbytes > self._start + self._bytes.nbytes:
            self._file.check_holds(start, nbytes)
            self._start, self._bytes = start, np.empty(min(SMALL, self._file.size() - start), np.uint8)
            if self._bytes.nbytes:
                self._file.read_whole(self._bytes, start)
        strides = contiguous_strides(shape, dtype.itemsize, "F" if elements.fortran else "C")
        return np.ndarray(shape, dtype, self._bytes, start - self._start, strides)


def _check(file: OpenFile, entries: Iterable[Elements | None]) -> None:
    for each in entries:
        if each is not None:
            file.check_holds(each.start, check_size(each.shape, each.dtype.itemsize))


def _reader(file: OpenFile) -> BufferedReader:
    return BufferedReader(FileIO(os.dup(file.raw.fileno())))
