"""``devmem completion``: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import get_completion_class

from devmem import DevmemError

from .output import collected_warnings, example


def completes(
    names: Callable[[], Iterable[str]], separator: str = ""
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return `click`'s completion of a parameter: the names that begin as the text, or as its last part, does.

    A shell shows what is printed meanwhile in the line that is being typed: nothing is, where devmem warns or cannot tell.
    """

    def complete(context: click.Context, parameter: click.Parameter, text: str) -> list[str]:
        before = text[: text.rfind(separator) + 1] if separator else ""
        with collected_warnings():
            try:
                return [before + name for name in names() if name.startswith(text[len(before) :])]
            except DevmemError:
                return []

    return complete


@click.command(
    epilog=example(
        "devmem completion bash >> ~/.bashrc", "devmem completion fish > ~/.config/fish/completions/devmem.fish"
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the text that makes SHELL complete devmem's commands, options and their values."""
    found = get_completion_class(shell)
    assert found is not None
    root = context.find_root().command
    print(found(root, {}, "devmem", "_DEVMEM_COMPLETE").source())
