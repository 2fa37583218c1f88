"""Read what a shared library needs, defines and lacks: the dynamic section and the dynamic symbols of an ELF file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_DYNAMIC, _SYMBOLS, _VERSIONS, _NEEDS = 6, 11, 0x6FFFFFFF, 0x6FFFFFFE
_NEEDED, _RPATH, _RUNPATH = 1, 15, 29
_WEAK = 2


class NotElf(ValueError):
    """No 64-bit little-endian ELF file."""


@dataclass
class Module:
    """One shared library."""

    path: Path
    needed: list[str] = field(default_factory=list)  #: names of the libraries that it links
    search: list[Path] = field(default_factory=list)  #: folders in which the loader looks for them first
    defined: set[str] = field(default_factory=set)
    undefined: dict[str, tuple[str, str]] = field(
        default_factory=dict
    )  #: name -> (library, version), or two empty texts


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    info: int


def read(path: Path) -> Module:
    """Read a shared library; weak symbols that it lacks are left out, as it does without them."""
    with path.open("rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            raise NotElf(f"{path} is no 64-bit ELF file")
        table, entry, count = struct.unpack_from("<Q", head, 40)[0], *struct.unpack_from("<HH", head, 58)
        file.seek(table)
        raw = file.read(entry * count)
        sections = [_section(raw, index * entry) for index in range(count)]

        def content(section: _Section) -> bytes:
            file.seek(section.offset)
            return file.read(section.size)

        module = Module(path)
        for section in sections:
            if section.kind == _DYNAMIC:
                _read_dynamic(module, content(section), content(sections[section.link]))
            elif section.kind == _SYMBOLS:
                versions = [content(each) for each in sections if each.kind == _VERSIONS]
                needs = [each for each in sections if each.kind == _NEEDS]
                known = dict(_needs(content(needs[0]), content(sections[needs[0].link]))) if needs else {}
                _read_symbols(
                    module, content(section), content(sections[section.link]), versions[0] if versions else b"", known
                )
    return module


def _section(raw: bytes, at: int) -> _Section:
    _, kind, _, _, offset, size, link, info = struct.unpack_from("<IIQQQQII", raw, at)
    return _Section(kind, offset, size, link, info)


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(0, at)].decode()


def _read_dynamic(module: Module, raw: bytes, strings: bytes) -> None:
    for tag, value in struct.iter_unpack("<QQ", raw):
        if tag == _NEEDED:
            module.needed.append(_text(strings, value))
        elif tag in (_RPATH, _RUNPATH):
            origin = str(module.path.parent)
            module.search += [
                Path(part.replace("$ORIGIN", origin)) for part in _text(strings, value).split(":") if part
            ]


def _needs(raw: bytes, strings: bytes) -> Iterator[tuple[int, tuple[str, str]]]:
    """The versions that the library requires of its dependencies: index -> (library, version)."""
    at = 0
    while True:
        _, count, library, first, after = struct.unpack_from("<HHIII", raw, at)
        inner = at + first
        for _ in range(count):
            _, _, index, name, step = struct.unpack_from("<IHHII", raw, inner)
            yield index, (_text(strings, library), _text(strings, name))
            inner += step
        if not after:
            return
        at += after


def _read_symbols(
    module: Module, raw: bytes, strings: bytes, versions: bytes, known: dict[int, tuple[str, str]]
) -> None:
    for index, (name, info, _, section, _, _) in enumerate(struct.iter_unpack("<IBBHQQ", raw)):
        if not name or info >> 4 == 0:  # local
            continue
        if section:
            module.defined.add(_text(strings, name))
        elif info >> 4 != _WEAK:
            version = struct.unpack_from("<H", versions, 2 * index)[0] & 0x7FFF if versions else 0
            module.undefined[_text(strings, name)] = known.get(version, ("", ""))
