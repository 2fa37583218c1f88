"""Call the kernels of public programs: ``python drivers.py PROGRAM FOLDER OUT``, with the program's packages in FOLDER.

The same calls are made of a program as its authors publish it, in numba's own simulator, and of the program after
``devmem migrate``, on the host backend. Each driver yields the name of a result, the arrays, and the arrays of a reference
that uses no kernel: NumPy, or what the program itself has for the CPU (compiled by ``numba.njit``).
Packages whose import brings far more than the kernels are entered without running their ``__init__``. CuPy's arrays are
NumPy's here, and PyTorch, which the kernels' files name in annotations, is a stand-in.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Result = tuple[str, Any, Any]


class StandIn(types.ModuleType):
    """A module whose names are classes that do nothing: bases, annotations and decorators."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        members = {"__init__": lambda self, *args, **kwargs: None, "__call__": lambda self, function: function}
        return type(name, (), members)


def stand_in(*names: str) -> None:
    for name in names:
        sys.modules[name] = StandIn(name)


def enter(*packages: str) -> None:
    """Make packages importable without running their ``__init__``."""
    for name in packages:
        module = types.ModuleType(name)
        parts = name.split(".")
        module.__path__ = [str(folder) for entry in sys.path if (folder := Path(entry, *parts)).is_dir()][:1]
        sys.modules[name] = module


def kernels_of(name: str) -> Any:
    return importlib.import_module(name)


def stumpy() -> Iterator[Result]:
    """Matrix profiles of a noisy series and a join of two, with and without normalisation; against STUMPY's njit."""
    import stumpy as library

    library.config.STUMPY_THREADS_PER_BLOCK = 32
    series = np.cumsum(np.random.default_rng(1).normal(size=40))
    other = np.cumsum(np.random.default_rng(2).normal(size=30))
    for name in ("stump", "aamp"):
        on_gpu, on_cpu = getattr(library, f"gpu_{name}"), getattr(library, name)
        for kind, mine, theirs in (
            ("self-join", on_gpu(series, 8), on_cpu(series, 8)),
            ("join", on_gpu(series, 8, other, ignore_trivial=False), on_cpu(series, 8, other, ignore_trivial=False)),
        ):
            yield f"{name} {kind}", np.asarray(mine, float), np.asarray(theirs, float)


def pylops_radon() -> Iterator[Result]:
    """Seismic processing: Fourier-Radon transforms and their adjoints."""
    sys.modules["cupy"] = np
    enter("pylops", "pylops.signalprocessing")
    chance = np.random.default_rng(3)

    radon = kernels_of("pylops.signalprocessing._fourierradon2d_cuda")
    nf, npx, nh = 6, 5, 4
    f, px, h = (np.linspace(0, 1, n, dtype=np.float32) for n in (nf, npx, nh))
    model = (chance.normal(size=(npx, nf)) + 1j * chance.normal(size=(npx, nf))).astype(np.complex64)
    data = (chance.normal(size=(nh, nf)) + 1j * chance.normal(size=(nh, nf))).astype(np.complex64)
    grid = {"num_blocks": (1, 1), "num_threads_per_blocks": (8, 8)}
    phase = np.exp(-2j * np.pi * np.einsum("f,p,h->hpf", f, px, h))
    out = radon._radon_inner_2d_cuda(model, np.zeros_like(data), f, px, h, 1, 5, npx, nh, **grid)
    expected = np.einsum("hpf,pf->hf", phase, model)
    expected[:, 0] = 0
    yield "fourier-radon 2d", out, expected
    out = radon._aradon_inner_2d_cuda(np.zeros_like(model), data, f, px, h, 1, 5, npx, nh, **grid)
    expected = np.einsum("hpf,hf->pf", phase.conj(), data)
    expected[:, 0] = 0
    yield "fourier-radon 2d adjoint", out, expected

    radon = kernels_of("pylops.signalprocessing._fourierradon3d_cuda")
    npy, nhy = 3, 2
    py, hy = (np.linspace(0, 1, n, dtype=np.float32) for n in (npy, nhy))
    model = (chance.normal(size=(npy, npx, nf)) + 1j * chance.normal(size=(npy, npx, nf))).astype(np.complex64)
    data = (chance.normal(size=(nhy, nh, nf)) + 1j * chance.normal(size=(nhy, nh, nf))).astype(np.complex64)
    grid = {"num_blocks": (1, 1, 1), "num_threads_per_blocks": (4, 8, 8)}
    slope = hy[:, None, None, None] * py[:, None] + (h[:, None, None] * px)[None]
    phase = np.exp(-2j * np.pi * slope[..., None] * f)
    out = radon._radon_inner_3d_cuda(model, np.zeros_like(data), f, py, px, hy, h, 0, nf - 1, npy, npx, nhy, nh, **grid)
    yield "fourier-radon 3d", out, np.einsum("yhqpf,qpf->yhf", phase, model)
    out = radon._aradon_inner_3d_cuda(
        np.zeros_like(model), data, f, py, px, hy, h, 0, nf - 1, npy, npx, nhy, nh, **grid
    )
    yield "fourier-radon 3d adjoint", out, np.einsum("yhqpf,yhf->qpf", phase.conj(), data)


def pylops() -> Iterator[Result]:
    """Seismic processing: non-stationary convolutions and a Kirchhoff operator of travel times, with their adjoints."""
    enter("pylops", "pylops.signalprocessing", "pylops.waveeqprocessing", "pylops.utils")
    stand_in("pylops.utils.backend")
    chance = np.random.default_rng(3)
    # One filter everywhere: then the convolution is stationary, and scipy's.
    from scipy.ndimage import convolve, correlate

    for axes in (2, 3):
        module = kernels_of(f"pylops.signalprocessing._nonstatconvolve{axes}d_cuda")
        dims, shape, filters = (7, 6, 5)[:axes], (3, 5, 3)[:axes], (2, 3, 2)[:axes]
        psf = chance.normal(size=shape)
        hs = np.broadcast_to(psf, filters + shape).copy()
        x = chance.normal(size=dims)
        spread = ((1,) * axes, (3,) * axes)
        options = {"num_blocks": (1,) * axes, "num_threads_per_blocks": (8,) * axes}
        out = module._matvec_rmatvec_call(
            x, np.zeros(dims), hs, shape, dims, *spread[0], *spread[1], *filters, rmatvec=False, **options
        )
        yield f"convolution {axes}d", out, convolve(x, psf, mode="constant")
        out = module._matvec_rmatvec_call(
            x, np.zeros(dims), hs, shape, dims, *spread[0], *spread[1], *filters, rmatvec=True, **options
        )
        yield f"convolution {axes}d adjoint", out, correlate(x, psf, mode="constant")

    helper = kernels_of("pylops.waveeqprocessing._kirchhoff_cuda")._KirchhoffCudaHelper
    sources, receivers, times, points, dt = 3, 4, 20, 6, 0.1
    to_source, to_receiver = chance.random((points, sources)), chance.random((points, receivers))
    time_of = (to_source[:, :, None] + to_receiver[:, None]).reshape(points, -1) / dt
    image, traces = chance.normal(size=points), chance.normal(size=(sources * receivers, times))
    early, share = time_of.astype(int), time_of % 1
    spread = np.zeros((sources * receivers, times, points))
    for point, trace in np.ndindex(*time_of.shape):
        spread[trace, early[point, trace], point] += 1 - share[point, trace]
        spread[trace, early[point, trace] + 1, point] += share[point, trace]
    sizes = (sources, receivers, times, points, dt, to_source, to_receiver)
    out = np.zeros_like(traces)
    helper._travsrcrec_kirch_matvec_cuda[(1, 1), (4, 4)](image, out, *sizes)
    yield "kirchhoff", out, spread @ image
    out = np.zeros_like(image)
    helper._travsrcrec_kirch_rmatvec_cuda[(1, 1), (4, 4)](traces, out, *sizes)
    yield "kirchhoff adjoint", out, np.einsum("atp,at->p", spread, traces)
    # With amplitudes: all angles and apertures are below the least, where nothing is tapered, but those of one source.
    speed, deep = 1 + chance.random(points), 3
    strong, weak = chance.random((points, sources)), chance.random((points, receivers))
    from_source, from_receiver = (chance.uniform(-0.3, 0.3, (points, n)) for n in (sources, receivers))
    from_source[:, 1] = 2
    places, others = chance.integers(0, 3, sources * receivers), chance.integers(0, 3, sources * receivers)
    taper = np.ones(21)
    half = np.cos((from_source[:, :, None] - from_receiver[:, None]) / 2)
    scale = 2 * half * strong[:, :, None] * weak[:, None] / speed[:, None, None]
    scale[:, 1] = 0  # its angle is beyond the greatest
    spread = spread * scale.reshape(points, -1).T[:, None]
    sizes = (*sizes[:5], speed, *sizes[5:], strong, weak, 5.0, 6.0, taper, deep, places, others, 0.5, 1.0)
    out = np.zeros_like(traces)
    helper._ampsrcrec_kirch_matvec_cuda[(1, 1), (4, 4)](image, out, *sizes, from_source, from_receiver)
    yield "kirchhoff with amplitudes", out, spread @ image
    out = np.zeros_like(image)
    helper._ampsrcrec_kirch_rmatvec_cuda[(1, 1), (4, 4)](traces, out, *sizes, from_source, from_receiver)
    yield "kirchhoff with amplitudes, adjoint", out, np.einsum("atp,at->p", spread, traces)


def pyproximal() -> Iterator[Result]:
    """Projections on a simplex with bounds, by bisection; against the package's njit."""
    enter("pyproximal", "pyproximal.proximal")
    stand_in("pylops", "pylops.utils", "pylops.utils.typing")
    on_gpu = kernels_of("pyproximal.proximal._Simplex_cuda")
    on_cpu = kernels_of("pyproximal.proximal._Simplex_numba")
    x = np.random.default_rng(4).normal(size=(20, 6))
    coeffs, out = np.ones(6), np.zeros_like(x)
    on_gpu.simplex_jit_cuda[2, 16](x, coeffs, 1.0, 0.0, 10.0, 100, 1e-10, 1e-10, out)
    yield "simplex", out, on_cpu.simplex_jit(x, coeffs, 1.0, 0.0, 10.0, 100, 1e-10, 1e-10)


def sgkit() -> Iterator[Result]:
    """Genetic distances: correlation and Euclidean, with missing values."""
    enter("sgkit", "sgkit.distance")
    stand_in("sgkit.typing")
    module = kernels_of("sgkit.distance.metrics")
    x, y = (np.random.default_rng(seed).random((n, 9), np.float32) for seed, n in ((5, 4), (6, 3)))
    x[1, 2] = y[0, 4] = -1
    both = (x[:, None] >= 0) & (y >= 0)
    a, b = np.where(both, x[:, None], 0), np.where(both, y, 0)
    sums = np.stack([v.sum(-1) for v in (a, b, a * a, b * b, a * b, both)], -1)
    # The package's own launch has 144 blocks of 1024 threads whatever the sizes: two minutes in numba's simulator.
    for name, expected in (("correlation", sums), ("euclidean", ((a - b) ** 2).sum(-1, keepdims=True))):
        out = np.zeros(expected.shape, np.float32)
        getattr(module, f"{name}_map_kernel")[(1, 1), (8, 8)](x, y, out)
        yield name, out, expected


def qokit() -> Iterator[Result]:
    """Quantum circuits: XX+YY rotations, diagonals, costs and reductions of a state of five qubits."""
    enter("qokit", "qokit.fur", "qokit.fur.nbcuda", "qokit.fur.diagonal_precomputation", "qokit.fur.mpi_nbcuda")
    utils, fur = kernels_of("qokit.fur.nbcuda.utils"), kernels_of("qokit.fur.nbcuda.fur")
    chance = np.random.default_rng(7)
    n, qubits = 32, 5
    state = chance.normal(size=n) + 1j * chance.normal(size=n)
    other = chance.normal(size=n)

    def changed(function: Callable[..., Any], *args: Any) -> Any:
        copy = state.copy()
        function(copy, *args)
        return copy

    yield "norm squared", changed(utils.norm_squared), abs(state) ** 2
    yield "uniform", changed(utils.initialize_uniform, 3.0), np.full(n, 3 / math.sqrt(n))
    yield "multiply", changed(utils.multiply, other), state * other
    yield "copy", changed(utils.copy, other), other
    yield "sum", utils.sum_reduce(other), other.sum()
    yield "maximum", utils.real_max_reduce(other), other.max()
    diagonal = kernels_of("qokit.fur.nbcuda.diagonal")
    yield "diagonal", changed(diagonal.apply_diagonal, 0.7, other), state * np.exp(-0.35j * other)

    def rotated(pairs: list[tuple[int, int]], theta: float) -> Any:
        x = state.copy()
        for first, second in pairs:
            swap = np.arange(n)
            one = ((swap >> first) ^ (swap >> second)) & 1 == 1
            swap = np.where(one, swap ^ (1 << first) ^ (1 << second), swap)
            x = np.where(one, math.cos(theta) * x - 1j * math.sin(theta) * x[swap], x)
        return x

    ring = [(j, j + 1) for i in range(2) for j in range(i, qubits - 1, 2)] + [(0, qubits - 1)]
    complete = [(i, j) for i in range(qubits - 1) for j in range(i + 1, qubits)]
    yield "ring", changed(fur.furxy_ring, 0.3, qubits), rotated(ring, 0.3)
    yield "complete", changed(fur.furxy_complete, 0.3, qubits), rotated(complete, 0.3)
    terms = [(0.5, (0, 1)), (-1.25, (2,)), (2.0, (0, 3, 4))]
    for name in ("diagonal_precomputation.gpu_numba", "mpi_nbcuda.compute_costs"):
        module = kernels_of(f"qokit.fur.{name}")
        costs = other.copy()
        module.zero_init(costs)
        module.compute_costs(0, qubits, terms, costs)
        expected = sum(c * (-1.0) ** sum((np.arange(n) >> q) & 1 for q in where) for c, where in terms)
        yield f"costs of {name.split('.')[0]}", costs, expected


def your() -> Iterator[Result]:
    """Radio astronomy: dedispersion and the bow-tie of a candidate."""
    enter("your", "your.utils")
    module = kernels_of("your.utils.gpu")
    chance = np.random.default_rng(8)
    header = types.SimpleNamespace(dtype=np.float32, tsamp=0.001)
    frequencies = np.linspace(1500, 1200, 8)
    data = chance.random((24, 8), np.float32)
    cand = types.SimpleNamespace(chan_freqs=frequencies, data=data, your_header=header, dm=20.0)
    single = frequencies.astype(np.float32).astype(float)

    def rolled(dm: float) -> Any:
        delay = (-4148808.0 * dm * (1 / single[0] ** 2 - 1 / single**2) / 1000 / header.tsamp).astype(int)
        return np.stack([np.roll(data[:, i], -delay[i]) for i in range(len(delay))], 1)

    yield "dedispersed", module.gpu_dedisperse(cand).dedispersed, rolled(20.0)
    expected = np.stack([rolled(dm).sum(1) for dm in np.linspace(0, 40, 256, dtype=np.float32).astype(float)])
    yield "bow-tie", module.gpu_dmt(cand).dmt, expected


def rnnt(package: str) -> Iterator[Result]:
    """The loss of a transducer and its gradient, step by step; against a forward and backward pass in NumPy."""
    rooms = ("", ".rnnt_loss", ".rnnt_loss.utils", ".rnnt_loss.utils.cuda_utils")
    stand_in("torch", "torch.nn")
    parts = package.split(".")
    enter(*(".".join(parts[: i + 1]) for i in range(len(parts))), *(package + room for room in rooms[1:]))
    kernels = kernels_of(f"{package}.rnnt_loss.utils.cuda_utils.gpu_rnnt_kernel")
    reduce = kernels_of(f"{package}.rnnt_loss.utils.cuda_utils.reduce")
    helper = kernels_of(f"{package}.rnnt_loss.utils.rnnt_helper")
    batch, steps, length, words = 2, 4, 3, 128
    chance = np.random.default_rng(9)
    acts = chance.normal(size=(batch, steps, length, words)).astype(np.float32)
    labels = chance.integers(1, words, size=(batch, length - 1))
    xlen, ylen = np.array([steps, steps - 1]), np.array([length - 1, length - 2])
    cells = batch * steps * length
    flat, denom = acts.ravel(), np.zeros(cells, np.float32)
    reduce.reduce_max(flat, denom, words, cells, False, 0)
    yield "largest", denom.copy(), acts.max(-1).ravel()
    reduce.reduce_exp(flat, denom, words, cells, True, 0)
    logs = acts.astype(float) - np.log(np.exp(acts.astype(float)).sum(-1, keepdims=True))
    yield "denominators", denom.copy(), -np.log(np.exp(acts.astype(float)).sum(-1)).ravel()
    alphas, betas = np.zeros(cells, np.float32), np.zeros(cells, np.float32)
    forward, backward = np.zeros(batch, np.float32), np.zeros(batch, np.float32)
    rest = (xlen, ylen, labels, batch, steps, length, words, 0)
    kernels.compute_alphas_kernel[batch, length](flat, denom, alphas, forward, *rest)
    kernels.compute_betas_kernel[batch, length](flat, denom, betas, backward, *rest)
    gradient = np.zeros_like(flat)
    kernels.compute_grad_kernel[cells, 128](gradient, flat, denom, alphas, betas, forward, *rest, 0.0, 0.0)
    expected = [transducer(logs[i], labels[i], xlen[i], ylen[i] + 1) for i in range(batch)]
    yield "likelihood forward", forward, [each for each, _ in expected]
    yield "likelihood backward", backward, [each for each, _ in expected]
    yield "gradient", gradient.reshape(acts.shape), np.stack([each for _, each in expected])
    costs = np.zeros(batch, np.float32)
    helper.compute_costs_data[1, 32](forward, costs, 0.5)
    yield "costs", costs, -1.5 * np.array([each for each, _ in expected])


def transducer(logs: Any, labels: Any, steps: int, length: int) -> tuple[float, Any]:
    """The log-likelihood of labels, and the gradient of minus it with respect to the activations; blank is 0."""
    alpha, beta = np.full((steps, length), -np.inf), np.full((steps + 1, length + 1), -np.inf)
    alpha[0, 0] = 0
    for t in range(steps):
        for u in range(length):
            if t:
                alpha[t, u] = np.logaddexp(alpha[t, u], alpha[t - 1, u] + logs[t - 1, u, 0])
            if u:
                alpha[t, u] = np.logaddexp(alpha[t, u], alpha[t, u - 1] + logs[t, u - 1, labels[u - 1]])
    beta[steps, length - 1] = 0
    likelihood = alpha[-1, -1] + logs[steps - 1, length - 1, 0]
    gradient = np.zeros_like(logs)
    for t in reversed(range(steps)):
        for u in reversed(range(length)):
            blank = logs[t, u, 0] + beta[t + 1, u]
            emit = logs[t, u, labels[u]] + beta[t, u + 1] if u < length - 1 else -np.inf
            beta[t, u] = np.logaddexp(blank, emit)
            gradient[t, u] = np.exp(alpha[t, u] + beta[t, u] + logs[t, u] - likelihood)
            gradient[t, u, 0] -= np.exp(alpha[t, u] + blank - likelihood)
            if u < length - 1:
                gradient[t, u, labels[u]] -= np.exp(alpha[t, u] + emit - likelihood)
    return float(likelihood), gradient


def lattice(steps: int, length: int, arcs: Callable[[int, int], list[Any]]) -> tuple[float, Any]:
    """The log-likelihood of all ways from (0, 0) to (steps, length - 1), and how likely each arc is part of one.

    ``arcs(t, u)`` lists the key, the logarithm of the weight and the steps along both axes of each arc from a cell.
    """
    end = (steps, length - 1)
    cells = list(np.ndindex(steps, length))

    def targets(t: int, u: int) -> Iterator[Any]:
        for key, weight, across, down in arcs(t, u):
            target = (t + across, u + down)
            if target[0] < steps or (target == end and not down):
                yield key, weight, target

    alpha, beta = np.full((steps + 1, length), -np.inf), np.full((steps + 1, length), -np.inf)
    alpha[0, 0] = beta[end] = 0
    for cell in cells:
        for _, weight, target in targets(*cell):
            alpha[target] = np.logaddexp(alpha[target], alpha[cell] + weight)
    for cell in reversed(cells):
        for _, weight, target in targets(*cell):
            beta[cell] = np.logaddexp(beta[cell], weight + beta[target])
    likely = [
        (cell, key, np.exp(alpha[cell] + weight + beta[target] - alpha[end]))
        for cell in cells
        for key, weight, target in targets(*cell)
    ]
    return float(alpha[end]), likely


def transducers_with_long_steps(kernels: Any) -> Iterator[Result]:
    """NeMo's losses with blanks of several steps, and with durations (TDT)."""
    batch, steps, length, words, sigma = 2, 4, 3, 128, 0.05
    chance = np.random.default_rng(15)
    acts = chance.normal(size=(batch, steps, length, words)).astype(np.float32)
    raw = chance.normal(size=(batch, steps, length, 3))
    lasting = (raw - np.log(np.exp(raw).sum(-1, keepdims=True))).astype(np.float32)
    labels = chance.integers(0, words - 4, size=(batch, length - 1))
    xlen, ylen = np.array([steps, steps - 1]), np.array([length - 1, length - 2])
    denom = -np.log(np.exp(acts.astype(float)).sum(-1))
    logs, cells, blank = acts + denom[..., None], batch * steps * length, words - 1
    flat, scaled = acts.ravel(), denom.astype(np.float32).ravel()
    big, durations = np.array([2, 3]), np.array([0, 1, 2])

    def blanks(i: int) -> Callable[[int, int], list[Any]]:
        def arcs(t: int, u: int) -> list[Any]:
            found = [(blank - n, logs[i, t, u, blank - n] - sigma, each, 0) for n, each in enumerate([1, *big])]
            label = labels[i, u] if u < ylen[i] else None
            return found if label is None else [*found, (label, logs[i, t, u, label] - sigma, 0, 1)]

        return arcs

    def timed(i: int) -> Callable[[int, int], list[Any]]:
        def arcs(t: int, u: int) -> list[Any]:
            found = []
            for n, each in enumerate(durations):
                for label, down in [(blank, 0)] * int(each > 0) + [(labels[i, min(u, length - 2)], 1)] * int(
                    u < ylen[i]
                ):
                    weight = logs[i, t, u, label] + lasting[i, t, u, n] - sigma
                    found.append(((label, n), weight, each, down))
            return found

        return arcs

    for name, arcs_of, extra in (("multiblank", blanks, big), ("tdt", timed, durations)):
        alphas, betas = np.zeros(cells, np.float32), np.zeros(cells, np.float32)
        forward, backward = np.zeros(batch, np.float32), np.zeros(batch, np.float32)
        more = () if name == "multiblank" else (lasting.ravel(),)
        rest = (xlen, ylen, labels, batch, steps, length, words, blank, extra, len(extra))
        getattr(kernels, f"compute_{name}_alphas_kernel")[batch, length](
            flat, *more, scaled, sigma, alphas, forward, *rest
        )
        getattr(kernels, f"compute_{name}_betas_kernel")[batch, length](
            flat, *more, scaled, sigma, betas, backward, *rest
        )
        expected, slopes = np.zeros(batch), np.zeros(acts.shape)
        expected_durations = np.zeros(lasting.shape)
        for i in range(batch):
            expected[i], likely = lattice(xlen[i], ylen[i] + 1, arcs_of(i))
            for (t, u), key, share in likely:
                label, n = key if isinstance(key, tuple) else (key, None)
                slopes[i, t, u] += share * np.exp(logs[i, t, u])
                slopes[i, t, u, label] -= share
                if n is not None:
                    expected_durations[i, t, u, n] -= share
        yield f"{name} forward", forward, expected
        yield f"{name} backward", backward, expected
        slope, of_durations = np.zeros_like(flat), np.zeros(lasting.size, np.float32)
        given = (slope,) if name == "multiblank" else (slope, of_durations)
        getattr(kernels, f"compute_{name}_grad_kernel")[cells, 128](
            *given, flat, *more, scaled, sigma, alphas, betas, forward, *rest, 0.0, 0.0
        )
        yield f"{name} gradient", slope.reshape(acts.shape), slopes
        if name == "tdt":
            yield "tdt gradient of durations", of_durations.reshape(lasting.shape), expected_durations


def warprnnt_numba() -> Iterator[Result]:
    """A speech recogniser's loss, with barriers, and with locks that threads of a block pass on."""
    yield from rnnt("warprnnt_numba")
    enter("warprnnt_numba.rnnt_loss.rnnt_atomic_locks", "warprnnt_numba.rnnt_loss.rnnt_atomic_locks.utils")
    kernels = kernels_of("warprnnt_numba.rnnt_loss.rnnt_atomic_locks.utils.naive_gpu_rnnt_kernel")
    batch, steps, length, words = 2, 4, 3, 8
    chance = np.random.default_rng(16)
    acts = chance.normal(size=(batch, steps, length, words)).astype(np.float32)
    labels = chance.integers(1, words, size=(batch, length - 1))
    xlen, ylen = np.array([steps, steps - 1]), np.array([length - 1, length - 2])
    denom = -np.log(np.exp(acts.astype(float)).sum(-1))
    logs = acts + denom[..., None]
    expected = [transducer(logs[i], labels[i], xlen[i], ylen[i] + 1)[0] for i in range(batch)]
    rest = (xlen, ylen, labels, batch, steps, length, words, 0)
    for name in ("alphas", "betas"):
        table, found = np.zeros(batch * steps * length, np.float32), np.zeros(batch, np.float32)
        locks = np.zeros((batch, length + 1), np.int32)
        kernel = getattr(kernels, f"compute_{name}_kernel_atomic_locks")
        kernel[batch, length](acts.ravel(), denom.astype(np.float32).ravel(), table, found, *rest, locks)
        yield f"likelihood by locks, {name}", found, expected


def nemo_toolkit() -> Iterator[Result]:
    """Speech: losses of transducers, with long blanks and with durations too, and the masks of SpecAugment."""
    yield from rnnt("nemo.collections.asr.parts.numba")
    place = "nemo.collections.asr.parts.numba.rnnt_loss.utils.cuda_utils.gpu_rnnt_kernel"
    yield from transducers_with_long_steps(kernels_of(place))
    sys.modules["torch"].nn = StandIn("torch.nn")
    stand_in("nemo.core", "nemo.core.classes", "nemo.core.neural_types", "nemo.utils")
    enter("nemo.collections.asr.parts.numba.spec_augment")
    module = kernels_of("nemo.collections.asr.parts.numba.spec_augment.spec_aug_numba")
    x = np.random.default_rng(10).random((3, 8, 10), np.float32)
    lengths, starts, widths = np.array([10, 8, 6]), np.array([[1], [0], [6]]), np.array([[2], [3], [2]])
    expected = x.copy()
    for b in range(3):
        expected[b, starts[b, 0] : starts[b, 0] + widths[b, 0]] = 0.5
        expected[b, :, starts[b, 0] : min(starts[b, 0] + widths[b, 0], lengths[b])] = 0.5
    module.spec_augment_kernel[(8, 10), 3](x, lengths, starts, widths, starts, widths, 0.5)
    yield "masks", x, expected


def mmdet3d() -> Iterator[Result]:
    """Detection in 3D: overlaps of rotated boxes; those of upright ones, and of ones turned together, against NumPy."""
    enter(*("mmdet3d", "mmdet3d.evaluation", "mmdet3d.evaluation.functional"))
    enter("mmdet3d.evaluation.functional.kitti_utils")
    module = kernels_of("mmdet3d.evaluation.functional.kitti_utils.rotate_iou")
    chance = np.random.default_rng(11)
    boxes = np.concatenate([chance.random((7, 2)) * 3, chance.random((7, 2)) + 1, np.zeros((7, 1))], 1)
    others = boxes[2:6] + np.array([0.25, 0.125, 0.5, 0, 0])
    low = np.maximum((boxes[:, :2] - boxes[:, 2:4] / 2)[:, None], others[:, :2] - others[:, 2:4] / 2)
    high = np.minimum((boxes[:, :2] + boxes[:, 2:4] / 2)[:, None], others[:, :2] + others[:, 2:4] / 2)
    shared = np.clip(high - low, 0, None).prod(-1)
    union = boxes[:, 2:4].prod(-1)[:, None] + others[:, 2:4].prod(-1) - shared
    yield "upright", module.rotate_iou_gpu_eval(boxes, others), shared / union
    # Turned together about the origin, boxes overlap as before.
    matrix, shift = np.eye(5), np.array([0, 0, 0, 0, 0.7])
    matrix[:2, :2] = [[math.cos(0.7), -math.sin(0.7)], [math.sin(0.7), math.cos(0.7)]]
    yield "turned", module.rotate_iou_gpu_eval(boxes @ matrix + shift, others @ matrix + shift), shared / union
    yield "turned apart", module.rotate_iou_gpu_eval(boxes, boxes + shift), None


def pysdtw() -> Iterator[Result]:
    """Soft dynamic time warping, forward and backward; the gradient against differences."""
    stand_in("torch", "torch.autograd")
    enter("pysdtw")
    module = kernels_of("pysdtw.sdtw_cuda")
    cost = np.random.default_rng(12).random((2, 5, 6))
    lengths = np.array([[5, 6], [4, 5]])
    cost[1, 4:] = cost[1, :, 5:] = 0  # the package's gradient is right only where nothing lies behind a shorter series

    def table(cost: Any) -> Any:
        r = np.full((2, 7, 8), np.inf)
        r[:, 0, 0] = 0
        for b, (rows, columns) in enumerate(lengths):
            for i in range(1, rows + 1):
                for j in range(1, columns + 1):
                    before = -np.logaddexp.reduce(-r[b, [i - 1, i - 1, i], [j - 1, j, j - 1]])
                    r[b, i, j] = cost[b, i - 1, j - 1] + before
        return r

    r = np.full((2, 7, 8), np.inf)
    r[:, 0, 0] = 0
    module.compute_softdtw_cuda[2, 6](cost, 1.0, 0.0, lengths, 1, 10, r)
    yield "forward", r.copy(), table(cost)
    padded, e = np.zeros((2, 7, 8)), np.zeros((2, 7, 8))
    padded[:, 1:6, 1:7] = cost
    for b, (rows, columns) in enumerate(lengths):
        r[b, :, columns + 1] = r[b, rows + 1, :] = -np.inf
        r[b, rows + 1, columns + 1] = r[b, rows, columns]
        e[b, rows + 1, columns + 1] = 1
    module.compute_softdtw_backward_cuda[2, 6](padded, r, 1.0, 0.0, lengths, 1, 10, e)
    gradient = np.zeros_like(cost)
    for place in np.ndindex(*cost.shape):
        ends = []
        for step in (1e-5, -1e-5):
            moved = cost.copy()
            moved[place] += step
            ends.append(table(moved)[place[0], lengths[place[0], 0], lengths[place[0], 1]])
        gradient[place] = (ends[0] - ends[1]) / 2e-5
    inside = (np.arange(5)[:, None] < lengths[:, :1, None]) & (np.arange(6) < lengths[:, 1:, None])
    yield "gradient", np.where(inside, e[:, 1:6, 1:7], 0), gradient


def abtem() -> Iterator[Result]:
    """Electron microscopy: cropped batches, sums of runs, and radial functions spread over a grid."""
    sys.modules["cupy"] = np
    enter("abtem", "abtem.core")
    module = kernels_of("abtem.core._cuda")
    chance = np.random.default_rng(13)
    array, corners = chance.random((3, 8, 9)), np.array([[0, 1], [2, 2], [3, 0]])
    expected = np.stack([a[i : i + 4, j : j + 5] for a, (i, j) in zip(array, corners, strict=True)])
    yield "crop", module.batch_crop_2d(array, corners, (4, 5)), expected
    values, separators = chance.random((2, 10)), np.array([0, 3, 3, 10])
    result = np.zeros((2, 3))
    module.sum_run_length_encoded(values, result, separators)
    ends = itertools.pairwise(separators)
    yield "sums of runs", result, np.stack([values[:, a:b].sum(1) for a, b in ends], 1)
    points = np.geomspace(0.1, 4, 12)
    functions = np.exp(-points) * np.ones((2, 1))
    slopes = np.diff(functions) / np.diff(points)
    positions, grid = np.array([[2.2, 3.1], [5.4, 4.6]]), np.zeros((9, 9))
    disk = np.array([(i, j) for i in range(-3, 4) for j in range(-3, 4)])
    counts = np.array([len(disk), 30])
    module.interpolate_radial_functions(
        grid, positions, disk, counts, np.ones(2), points, functions, slopes, max_disk_count=len(disk)
    )
    expected = np.zeros((9, 9))
    for position, count, function in zip(positions, counts, functions, strict=True):
        for place in (np.round(position) + disk[:count]).astype(int):
            distance = np.hypot(*(place - position))
            if (place >= 0).all() and (place < 9).all() and distance < points[-1]:
                expected[tuple(place)] += np.interp(distance, points, function)
    yield "radial functions", grid, expected


def pyxem() -> Iterator[Result]:
    """Diffraction: the correlation of a polar image with a library of templates, and sums of sectors of images."""
    enter("pyxem", "pyxem.utils")
    stand_in("shapely")
    sys.modules["pyxem"].CUPY_INSTALLED, sys.modules["cupy"] = True, np
    module = kernels_of("pyxem.utils.cuda_utils")
    chance = np.random.default_rng(14)
    image = chance.random((12, 9)).astype(np.float32)
    r, t = chance.integers(1, 9, size=(3, 5)), chance.integers(0, 12, size=(3, 5))
    intensity = chance.random((3, 5)).astype(np.float32)
    out, mirrored = np.zeros((3, 12), np.float32), np.zeros((3, 12), np.float32)
    module._correlate_polar_image_to_library_gpu[(3, 1), (1, module.TPB)](image, r, t, intensity, out, mirrored)
    shift = np.arange(12)[:, None]
    yield "correlation", out, (image[(t[:, None] + shift) % 12, r[:, None]] * intensity[:, None]).sum(-1)
    sectors = kernels_of("pyxem.utils._azimuthal_integrations")
    images, hidden = chance.random((2, 6, 7)), chance.random((6, 7)) > 0.7
    corners = np.array([(i % 3, i // 2, i % 3 + 2, i // 2 + 3) for i in range(6)])
    ends = np.arange(0, 7) * 6
    spans, shares = np.stack([ends[:-1], ends[1:]], 1), chance.random(36)
    found = sectors._slice_radial_integrate_cupy(images, shares, spans, corners, hidden, 3, 2)
    cut = [images[:, a:c, b:d] * ~hidden[a:c, b:d] for a, b, c, d in corners]
    expected = [(each * shares[i * 6 : i * 6 + 6].reshape(2, 3)).sum((1, 2)) for i, each in enumerate(cut)]
    yield "sectors", found, np.stack(expected, 1).reshape(2, 3, 2)
    yield "mirrored", mirrored, (image[(shift - t[:, None]) % 12, r[:, None]] * intensity[:, None]).sum(-1)


def main(program: str, folder: str, out: str) -> None:
    sys.path.insert(0, folder)
    launched: set[str] = set()
    from devmem.kernels.launch import Launch

    call = Launch.__call__

    def recorded(self: Any, /, *args: Any, **named: Any) -> Any:
        launched.add(self.kernel.function.__name__)
        return call(self, *args, **named)

    Launch.__call__ = recorded
    warnings.simplefilter("ignore")
    arrays: dict[str, Any] = {}
    start = time.process_time()  # other work on the machine lengthens the time on the clock
    for name, result, reference in globals()[program]():
        arrays[f"result/{name}"] = np.array(result)
        if reference is not None:
            arrays[f"reference/{name}"] = np.array(reference)
    seconds = time.process_time() - start
    np.savez(out, **arrays)
    Path(out).with_suffix(".json").write_text(json.dumps({"seconds": seconds, "launched": sorted(launched)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
