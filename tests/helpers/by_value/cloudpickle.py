"""What devmem asks of cloudpickle, functions by value, where cloudpickle itself is not installed.

A folder of its own, which tests put on the path of a process: its name is that of what it stands in for.
"""

from __future__ import annotations

import builtins
import importlib
import io
import marshal
import pickle
import sys
from operator import attrgetter
from types import CellType, FunctionType, ModuleType


class CloudPickler(pickle.Pickler):
    """Pickles functions by value unless a module other than ``__main__`` has them, and modules by name."""

    def reducer_override(self, obj):
        if isinstance(obj, ModuleType):
            return importlib.import_module, (obj.__name__,)
        if not isinstance(obj, FunctionType) or _has_by_name(obj):
            return NotImplemented
        names = set(_names(obj.__code__)) & obj.__globals__.keys()
        cells = tuple(cell.cell_contents for cell in obj.__closure__ or ())
        state = {name: obj.__globals__[name] for name in names}, cells, obj.__defaults__
        return _made, (marshal.dumps(obj.__code__), obj.__qualname__, len(cells)), state, None, None, _filled


def dumps(obj):
    """The object as bytes for `pickle.loads`."""
    file = io.BytesIO()
    CloudPickler(file).dump(obj)
    return file.getvalue()


def _has_by_name(function):
    try:
        found = attrgetter(function.__qualname__)(sys.modules[function.__module__])
    except (AttributeError, KeyError):
        return False
    return found is function and function.__module__ != "__main__"


def _names(code):
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, type(code)):
            yield from _names(each)


def _made(code, qualname, cells):
    code = marshal.loads(code)
    made = FunctionType(code, {"__builtins__": builtins}, code.co_name, None, tuple(CellType() for _ in range(cells)))
    made.__qualname__, made.__module__ = qualname, "__main__"
    return made


def _filled(function, state):
    names, cells, function.__defaults__ = state
    function.__globals__.update(names)
    for cell, value in zip(function.__closure__ or (), cells, strict=True):
        cell.cell_contents = value
