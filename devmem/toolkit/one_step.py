"""Changes that belong together, made with no Python between them.

Behind most lines of Python other code may run on the same thread: the handler of a signal, which may raise KeyboardInterrupt or
call the library again, and finalizers, which the garbage collector runs. Other threads may run there too. Python lets them where
a function was called, a loop goes round or a container is made; not inside a function written in C that does none of it. So state
that they can meet is changed by one call into C, `consume` or `in_one_step`, of functions that are written in C themselves:
methods of lists, dictionaries, sets, queues and locks, `setattr` where no class intervenes, and partials of these.

If the change depends on a question, the changes are `prepared` first. The question, which calls nothing, stands right before
`consume`: ``if self.newest == seen: consume(changes)``. If the answer is no, other code has come between: look again.
"""

# Decision: docs/adr/0014-interrupts-and-handlers-may-come-anywhere.md
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import call

Change = Callable[[], object]

#: Makes the changes that `prepared` has returned.
consume = deque[object](maxlen=0).extend


def prepared(changes: Iterable[Change]) -> Iterator[object]:
    """Return what makes the changes when it is given to `consume`."""
    return map(call, tuple(changes))


def in_one_step(*changes: Change) -> None:
    """Make changes, each a call of a function that is written in C. If one raises, those behind it are not made."""
    consume(map(call, changes))
