"""The group of commands; each command has its own file."""

from __future__ import annotations

import click

import devmem

from .bench import bench
from .completion import completion
from .doctor import doctor
from .emulate import emulate
from .info import info
from .migrate import migrate
from .replay import replay
from .roundtrip import roundtrip
from .simulate import simulate
from .view import view


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(devmem.__version__, prog_name="devmem")
def commands() -> None:
    """Move arrays between host and accelerator memory, and find out why that fails."""


for command in (info, doctor, roundtrip, bench, simulate, emulate, replay, view, migrate, completion):
    commands.add_command(command)
