"""Programs whose allocations are recorded: they allocate and free as real programs do, without computing."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import devmem as dm

MIB = 1 << 20
#: Where `logged` writes.
FOLDER = "DEVMEM_BENCHMARK_TRACES"
_numbers = itertools.count()


def logged(device: Any) -> Any:
    """A memory stack that writes a log for each opening of a device: ``DEVMEM_MEMORY_MANAGER=programs:logged``."""
    return dm.memory.Log(path=Path(os.environ[FOLDER], f"{next(_numbers):06}.jsonl"))


def array(nbytes: float, stream: Any = 0) -> Any:
    """Device memory of ``nbytes`` bytes."""
    return dm.device_array(max(1, int(nbytes)), "u1", stream=stream)


def training(steps: int = 24) -> None:
    """Train a small transformer: permanent parameters, activations last in first out, texts of every length, some evaluations."""
    chance = random.Random(1)
    width, layers, vocabulary = 512, 12, 8000
    shapes = [vocabulary * width] + [3 * width * width, width * width, 4 * width * width, 4 * width * width] * layers
    parameters = [array(4 * count) for count in shapes]
    moments = [array(8 * count) for count in shapes]
    for step in range(steps):
        evaluating = step % 8 == 7
        tokens = (64 if evaluating else 16) * chance.randrange(64, 257, 8)
        kept = [array(4 * tokens), array(4 * tokens)]
        for _ in range(layers):
            made = [array(4 * tokens * width), array(12 * tokens * width), array(tokens * tokens // 16)]
            passing = [array(16 * tokens * width), array(4 * tokens * width)]
            if evaluating:
                made += passing
                for each in made[:-1]:
                    each.free()
                kept.append(made[-1])
                kept.pop(-2 if len(kept) > 3 else 0).free()
            else:
                passing.pop().free()
                kept += made + passing
        if evaluating:
            while kept:
                kept.pop(0).free()
            continue
        logits = array(4 * tokens * vocabulary // 8)
        gradients = []
        flowing = array(4 * tokens * width)
        logits.free()
        for at in reversed(range(len(shapes))):
            gradients.append(array(4 * shapes[at]))
            following, scratch = array(4 * tokens * width), array(16 * tokens * width)
            flowing.free()
            scratch.free()
            flowing = following
            if len(kept) > 2:
                kept.pop().free()
        flowing.free()
        while kept:
            kept.pop().free()
        norms = [array(4) for _ in gradients]
        for gradient, norm in zip(gradients, norms, strict=True):
            array(gradient.nbytes).free()
            norm.free()
            gradient.free()
    for each in [*moments, *parameters]:
        each.free()


def serving(requests: int = 2500) -> None:
    """Answer requests of every size on four streams: each allocates, grows its cache in steps, and ends independently."""
    chance = random.Random(2)
    streams = [dm.stream() for _ in range(4)]
    open_requests: list[tuple[int, Any, list[Any]]] = []
    for now in range(requests):
        stream = chance.choice(streams)
        held = [array(2 ** chance.uniform(8, 25), stream)]
        held += [array(2 ** chance.uniform(12, 22), stream) for _ in range(chance.randrange(4))]
        scratch = array(2 ** chance.uniform(16, 24), stream)
        scratch.free()
        open_requests.append((now + int(chance.expovariate(1 / 120)) + 1, stream, held))
        for end, stream, held in open_requests:
            if end > now and held[0].nbytes < 16 * MIB and chance.random() < 0.02:
                held.append(array(2 * held[0].nbytes, stream))
                held.pop(0).free()
        for _, _, held in [each for each in open_requests if each[0] <= now]:
            while held:
                held.pop(chance.randrange(len(held))).free()
        open_requests = [each for each in open_requests if each[0] > now]
    for _, _, held in open_requests:
        for each in held:
            each.free()
    for stream in streams:
        stream.close()


def analysis(queries: int = 60) -> None:
    """Query tables: permanent columns; filters, joins and sorts with large results of different sizes that live for a while."""
    chance = random.Random(3)
    columns = [array(8 * chance.randrange(400_000, 1_200_000)) for _ in range(16)]
    results: list[Any] = []
    for _ in range(queries):
        rows = chance.randrange(50_000, 1_500_000)
        mask, index = array(rows), array(8 * rows)
        picked = []
        for _ in range(chance.randrange(2, 9)):
            size = chance.uniform(0.02, 1) * rows * 8
            scratch = [array(size / 256 + 1) for _ in range(3)]
            picked.append(array(size))
            for each in scratch:
                each.free()
        mask.free()
        table = array(16 * rows * chance.uniform(0.5, 2))
        joined = array(8 * rows * chance.uniform(0.5, 4))
        table.free()
        index.free()
        for each in picked:
            each.free()
        results.append(joined)
        while len(results) > 12:
            results.pop(chance.randrange(len(results))).free()
        names = [array(chance.randrange(1, 4000)) for _ in range(30)]
        results.append(names.pop(chance.randrange(30)))
        for each in names:
            each.free()
    for each in [*results, *columns]:
        each.free()


PROGRAMS: dict[str, Callable[[], None]] = {"training": training, "serving": serving, "analysis": analysis}
