#!/usr/bin/env python3
"""Fetch the ROCm runtime of Debian and Ubuntu, and unpack it into a cache, for tests that use the real library.

    python scripts/debian_rocm.py [--cached]

Prints the folder. Needs no root: apt uses package lists, archives and a package database in the cache, and checks signatures as
usual; the archives are then unpacked into one folder. The package is not installed, so that tests without the library still
work on the same machine. It downloads about 60 MB once and keeps 250 MB. If the library is not available, the exit code is 3 and
the reason is on standard error; with ``--cached`` nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

NOT_AT_HAND = 3
TOOLS = ("apt-get", "apt-cache", "dpkg-deb")
RUNTIME = re.compile(r"libamdhip64-(\d+)")
#: Not unpacked: these packages belong to the C library, which every Python installation has.
OF_THE_SYSTEM = ("libc6", "libgcc-s1", "libstdc++6", "gcc-")
FETCH_SECONDS = 300


class NotAtHandError(Exception):
    """The library is not available here; the message says why."""


@dataclass(frozen=True)
class DebianRocm:
    """The unpacked runtime, and the two folders by which a user may select it."""

    folder: Path

    @property
    def library(self) -> Path:
        """The library, under its versioned name, the only one in the runtime package."""
        [found] = self.folder.glob("root/usr/lib/*/libamdhip64.so.[0-9]")
        return found

    @property
    def as_shipped(self) -> Path:
        """The folder of the libraries: for ``LD_LIBRARY_PATH``."""
        return self.library.parent

    @property
    def prefix(self) -> Path:
        """A folder whose ``lib`` has the unversioned name too, as with the development package: for ``ROCM_PATH``."""
        return self.folder / "prefix"


def at_hand() -> DebianRocm:
    """The runtime, if it is in the cache; does not use the network."""
    folder = cache() / "unpacked"
    if not (folder / "prefix" / "lib" / "libamdhip64.so").exists():
        raise NotAtHandError(f"Debian's ROCm library is not in {cache()}: python scripts/debian_rocm.py fetches it")
    return DebianRocm(folder)


def fetch() -> DebianRocm:
    """The runtime, fetched if it is not in the cache."""
    try:
        return at_hand()
    except NotAtHandError:
        pass
    if not sys.platform.startswith("linux"):
        raise NotAtHandError(f"Debian's ROCm library needs Linux; this is {sys.platform}")
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise NotAtHandError(f"Debian's ROCm library is fetched with apt, and there is no {tool} here")
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache()) as scratch:
        _unpack(_download(Path(scratch)), Path(scratch) / "unpacked")
        try:
            (Path(scratch) / "unpacked").rename(cache() / "unpacked")
        except OSError:
            at_hand()  # another process was faster, else this raises
    return at_hand()


def cache() -> Path:
    """The folder of the cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "devmem" / "debian-rocm"


def main() -> int:
    """Fetch the runtime and print its folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--cached", action="store_true", help="download nothing: print the folder if the runtime is in the cache"
    )
    options = parser.parse_args()
    try:
        found = at_hand() if options.cached else fetch()
    except NotAtHandError as reason:
        print(reason, file=sys.stderr)
        return NOT_AT_HAND
    print(found.folder)
    return 0


# -- below -------------------------------------------------------------------------------------------------------------


def _download(scratch: Path) -> list[Path]:
    """Download the package and its dependencies with apt, as for an empty system."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    (scratch / "status").touch()
    ours = {
        "Dir::State": scratch / "state",
        "Dir::State::Lists": scratch / "state" / "lists",
        "Dir::State::status": scratch / "status",
        "Dir::Cache": scratch / "cache",
        "Dir::Cache::archives": scratch / "cache" / "archives",
        "APT::Sandbox::User": "",  # apt's own user could not write there
        "Debug::NoLocking": "true",  # these folders are private
    }
    options = [part for name, value in ours.items() for part in ("-o", f"{name}={value}")]
    _run("apt-get", *options, "-q", "update")
    known = _run("apt-cache", *options, "pkgnames", "libamdhip64-").split()
    versions = sorted(int(match[1]) for name in known if (match := RUNTIME.fullmatch(name)))
    if not versions:
        raise NotAtHandError("apt knows no package libamdhip64-N here: its sources are not those of Debian 12 or later")
    package = f"libamdhip64-{versions[-1]}"
    _run("apt-get", *options, "-q", "-y", "--download-only", "--no-install-recommends", "install", package)
    return sorted((scratch / "cache" / "archives").glob("*.deb"))


def _unpack(archives: list[Path], folder: Path) -> None:
    root, lib = folder / "root", folder / "prefix" / "lib"
    root.mkdir(parents=True)
    lib.mkdir(parents=True)
    for archive in archives:
        if not archive.name.startswith(OF_THE_SYSTEM):
            _run("dpkg-deb", "-x", str(archive), str(root))
    for path in root.glob("usr/share"):
        shutil.rmtree(path)
    libraries = DebianRocm(folder).as_shipped
    for path in [*libraries.iterdir(), *root.glob("lib/*/*.so*")]:
        if ".so" in path.name and not (libraries / path.name).exists():
            (libraries / path.name).symlink_to(os.path.relpath(path, libraries))  # with a merged /usr it is one folder
    for path in libraries.glob("*.so*"):
        (lib / path.name).symlink_to(os.path.relpath(path, lib))
    bare = lib / "libamdhip64.so"
    if not bare.exists():
        bare.symlink_to(os.path.relpath(DebianRocm(folder).library, lib))


def _run(*command: str) -> str:
    """Run a tool with English messages; raise its failure as a reason."""
    env = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotAtHandError(f"{command[0]} did not end within {FETCH_SECONDS} s") from None
    if done.returncode:
        said = " ".join((done.stderr.strip() or done.stdout.strip()).split())[-300:]
        raise NotAtHandError(f"{command[0]} {command[-1]} failed with exit status {done.returncode}: {said}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
