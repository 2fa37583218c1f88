"""Nested lists, tuples and dicts, and what is in them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

Tree = Any
_CONTAINERS = (list, tuple, dict)


def flatten(tree: Tree) -> tuple[list[Any], set[type], bool]:
    """The leaves of a tree in order, in a list of their own; their classes; and whether the tree is a list of leaves itself."""
    leaves: list[Any] = []
    classes: set[type] = set()
    flat = _flatten(tree, leaves, classes)
    return leaves, classes, flat and type(tree) is list


def rebuild(tree: Tree, leaves: Iterator[Any]) -> Tree:
    """The same structure with other leaves."""
    if isinstance(tree, dict):
        made = {} if type(tree) is dict else tree.copy()  # keeps what its class has besides, a default_factory say
        for key, value in tree.items():
            made[key] = rebuild(value, leaves)
        return made
    if not isinstance(tree, (list, tuple)):
        return next(leaves)
    if _has_containers(set(map(type, tree))):
        items = [rebuild(item, leaves) for item in tree]
    else:
        items = list(islice(leaves, len(tree)))
    if type(tree) is list:
        return items
    return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)


def path(tree: Tree, number: int) -> str:
    """Where a leaf is, for people."""

    def walk(tree: Tree, at: str) -> Iterator[str]:
        if isinstance(tree, _CONTAINERS):
            for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
                yield from walk(item, f"{at}[{key!r}]")
        else:
            yield at

    return next(islice(walk(tree, "tree"), number, None))


def _flatten(tree: Tree, leaves: list[Any], classes: set[type]) -> bool:
    """Put the leaves into the list. Whether the tree is a container of nothing but leaves."""
    if not isinstance(tree, _CONTAINERS):
        leaves.append(tree)
        classes.add(type(tree))
        return False
    items: Collection[Any] = tree.values() if isinstance(tree, dict) else tree
    found = set(map(type, items))
    if _has_containers(found):
        for item in items:
            _flatten(item, leaves, classes)
        return False
    leaves.extend(items)  # by far the commonest, and a tenth of the time
    classes |= found
    return True


def _has_containers(classes: set[type]) -> bool:
    return any(issubclass(each, _CONTAINERS) for each in classes)
