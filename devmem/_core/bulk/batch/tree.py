"""Nested lists, tuples and dicts, and what is in them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, repeat
from typing import Any

from ....spi.errors import LayoutError

Tree = Any
_CONTAINERS = (list, tuple, dict)


def flatten(tree: Tree) -> tuple[list[Any], set[type], bool]:
    """The leaves of a tree in order, in a list of their own; their classes; and whether the tree is a list of leaves itself.

    Raises
    ------
    LayoutError
        A container is within itself, or containers are nested deeper than Python's calls may be.
    """
    leaves: list[Any] = []
    classes: set[type] = set()
    try:
        flat = _flatten(tree, leaves, classes, set())
    except _WithinItself:
        raise LayoutError(f"{_cycle(tree, 'tree', {})}: what is within itself has no end, leave it out there") from None
    except RecursionError:
        raise LayoutError("the tree is nested deeper than Python's calls may be (sys.getrecursionlimit())") from None
    return leaves, classes, flat and type(tree) is list


def rebuild(tree: Tree, leaves: Iterator[Any]) -> Tree:
    """The same structure with other leaves."""
    if isinstance(tree, dict):
        made = {} if type(tree) is dict else copy.copy(tree)  # keeps what it has besides, a default_factory say
        for key, value in tree.items():
            made[key] = rebuild(value, leaves)
        return made
    if not isinstance(tree, (list, tuple)):
        return next(leaves)
    if _has_containers(set(map(type, tree))):
        items = list(map(rebuild, tree, repeat(leaves)))  # one call deep for each level, as in `flatten`
    else:
        items = list(islice(leaves, len(tree)))
    if type(tree) is list:
        return items
    return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)


def path(tree: Tree, number: int) -> str:
    """Return the place of a leaf, as text for people."""

    def walk(tree: Tree, at: str) -> Iterator[str]:
        if isinstance(tree, _CONTAINERS):
            for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
                yield from walk(item, f"{at}[{key!r}]")
        else:
            yield at

    return next(islice(walk(tree, "tree"), number, None))


def paths(tree: Tree, numbers: Sequence[int]) -> str:
    """Return the places of leaves that are copied together, as text for people."""
    if len(numbers) == 1:
        return path(tree, numbers[0])
    return f"{len(numbers)} leaves together, {path(tree, numbers[0])} to {path(tree, numbers[-1])}"


class _WithinItself(Exception):
    """A container is one of those that it is in."""


def _cycle(tree: Tree, at: str, above: dict[int, str]) -> str:
    """The first place that has a container which it is in itself, for people; nothing, if there is none."""
    if not isinstance(tree, _CONTAINERS):
        return ""
    if id(tree) in above:
        return f"{at} is {above[id(tree)]} again"
    for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if found := _cycle(item, f"{at}[{key!r}]", {**above, id(tree): at}):
            return found
    return ""


def _flatten(tree: Tree, leaves: list[Any], classes: set[type], above: set[int]) -> bool:
    """Put the leaves into the list. Whether the tree is a container of nothing but leaves. ``above``: what it is in."""
    if not isinstance(tree, _CONTAINERS):
        leaves.append(tree)
        classes.add(type(tree))
        return False
    items: Collection[Any] = tree.values() if isinstance(tree, dict) else tree
    found = set(map(type, items))
    if _has_containers(found):
        if id(tree) in above:
            raise _WithinItself
        above.add(id(tree))
        for item in items:
            _flatten(item, leaves, classes, above)
        above.remove(id(tree))
        return False
    leaves.extend(items)  # by far the commonest, and a tenth of the time
    classes |= found
    return True


def _has_containers(classes: set[type]) -> bool:
    return any(issubclass(each, _CONTAINERS) for each in classes)
