"""``jit``: devmem's kernels with numba.cuda's signatures and options; and names that only numba-cuda defines."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import devmem

from ...kernels.decorated import Unchanging
from ...kernels.functions import DeviceFunction
from ...kernels.work_items import running_item
from ...spi.errors import DevmemError
from ..deprecation import warn_old_name
from .copy_warning import warn_of_copy
from .cudadrv.devicearray import auto_device, is_host_record
from .cudadrv.error import translated
from .cudadrv.state import ready_device
from .cudadrv.streams import native_stream
from .errors import normalize_kernel_dimensions

#: The options for devmem's compilers; all others are hints without effect.
OPTIONS = ("debug", "opt", "lineinfo", "fastmath", "launch_bounds")
#: Names that only numba-cuda defines, for the host, with its modules; they are looked up there at first use.
COMPILER_ONLY = {
    **dict.fromkeys(
        ("compile", "compile_for_current_device", "compile_ptx", "compile_ptx_for_current_device"),
        "numba.cuda.compiler",
    ),
    # Code to link, which jit(link=...) and declare_device(link=...) refuse.
    **dict.fromkeys(
        ("Archive", "CUSource", "Cubin", "Fatbin", "LTOIR", "Object", "PTXSource"), "numba.cuda.cudadrv.linkable_code"
    ),
    "types": "numba.cuda.types",
}
LINKED = "its code has to be linked, and devmem loads only code that needs no linker"
#: Names of numba.cuda that cannot work in devmem's kernels, and why.
REFUSED = {"declare_device": LINKED}
#: What numba.cuda's kernels tell of their compiled code.
OF_COMPILED_CODE = (
    *("overloads", "nopython_signatures", "stats", "compile", "get_compile_result", "get_metadata", "inspect_types"),
    *("inspect_asm", "inspect_llvm", "inspect_lto_ptx", "inspect_sass", "inspect_sass_cfg", "get_const_mem_size"),
    *("get_local_mem_per_thread", "get_max_threads_per_block", "get_regs_per_thread", "get_shared_mem_per_block"),
)


class Dispatcher(DeviceFunction):
    """A kernel: ``k[blocks, threads](...)``, ``k[blocks, threads, stream, shared_bytes](...)``, ``k.forall(n)(...)``.

    As in numba.cuda, kernels can call it as a function, with or without ``device=True``.
    """

    #: The declared types.
    signatures: tuple[str, ...] = ()

    def __init__(
        self,
        function: Callable[..., object],
        signatures: tuple[str, ...],
        options: dict[str, Any],
        extensions: Iterable[Any] = (),
    ) -> None:
        super().__init__(function, signatures, options)
        decorate: Any = devmem.kernel(signatures, **options)
        self.kernel: Any = decorate(function)
        self.kernel.warn_of_copy = warn_of_copy
        #: Objects whose ``prepare_args(type, value, stream, retr)`` replaces each argument of a launch; the type is None.
        self.extensions: list[Any] = list(extensions)

    def _made_with(self) -> tuple[Any, ...]:
        """Return what it is made with besides the function."""
        return *super()._made_with(), self.extensions

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}>"

    def __getattr__(self, name: str) -> Any:
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name in OF_COMPILED_CODE:
            text += (
                ": it tells of compiled code, which devmem's kernels do not show; compile this one by numba.cuda.jit"
            )
        raise AttributeError(text, name=name, obj=self)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function in a kernel; ValueError on the host, where it has to be launched."""
        if running_item() is None:
            normalize_kernel_dimensions(None, None)
        return super().__call__(*args, **named)

    def __getitem__(self, args: Any) -> Any:
        if not isinstance(args, tuple) or len(args) not in (2, 3, 4):
            raise ValueError("must specify at least the griddim and blockdim")
        return self.configure(*args)

    def configure(self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Any:
        """The kernel with a grid: call it with its arguments.

        Raises
        ------
        ValueError
            The grid or the block is None, or has more than three lengths.
        TypeError
            A length is not an integer, or the stream argument is not a stream.
        """
        grid, block = normalize_kernel_dimensions(griddim, blockdim)
        return _Launch(self, self.kernel[grid, block, native_stream(stream), sharedmem], stream)

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
        """The kernel with at least one thread for each task; nothing is launched for 0 tasks."""
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        launch = self.kernel.forall(ntasks, native_stream(stream), threads=tpb, dynamic_shared_bytes=sharedmem)
        return _Launch(self, launch, stream)

    def specialize(self, *args: Any) -> Dispatcher:
        """The kernel itself, which is compiled for the types of the arguments of each launch."""
        return self

    @property
    def py_func(self) -> Callable[..., object]:
        """The decorated function."""
        return self.function

    @property
    def targetoptions(self) -> dict[str, object]:
        """The options for the compiler."""
        return self.options


class _Launch(Unchanging):
    """A kernel with its grid."""

    def __init__(self, dispatcher: Dispatcher, launch: Any, stream: Any) -> None:
        self.dispatcher = dispatcher
        self.launch = launch
        self.stream = stream

    def __reduce__(self) -> tuple[Any, ...]:
        return self.launch.again(), (self.dispatcher,)

    def __call__(self, *args: Any, **named: Any) -> None:
        after: list[Callable[[], object]] = []
        for extension in reversed(self.dispatcher.extensions):
            args = tuple(extension.prepare_args(None, each, stream=self.stream, retr=after)[1] for each in args)
        self._launch(args, named)
        for each in after:
            each()

    def _launch(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if any(map(is_host_record, args)):
            self._with_records(args, named)
            return
        try:
            ready_device()
            self.launch(*args, **named)
        except DevmemError as error:
            raise translated(error) from error

    def _with_records(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Launch with records of the host, which a kernel may write, as in numba.cuda: each is uploaded and copied back."""
        given = tuple(auto_device(each)[0] if is_host_record(each) else each for each in args)
        self._launch(given, named)
        for host, record in zip(args, given, strict=True):
            if is_host_record(host):
                record.copy_to_host(host)


def jit(
    func_or_sig: Any = None,
    device: bool = False,
    inline: Any = "never",
    forceinline: bool = False,
    link: Any = (),
    debug: bool | None = None,
    opt: bool | None = None,
    lineinfo: bool = False,
    cache: bool = False,
    launch_bounds: Any = None,
    lto: bool | None = None,
    shared_memory_carveout: Any = None,
    **kws: Any,
) -> Any:
    """Make a kernel of a function, or, with ``device=True``, a function that kernels call.

    Parameters
    ----------
    func_or_sig : function, signature or list of signatures, optional
        The function; or its signatures, as strings or as Numba's types.
    device : bool
        Make a function that kernels call instead of a kernel.
    extensions : list
        Objects whose ``prepare_args(type, value, stream, retr)`` returns the type and what is passed instead of an argument;
        what it appends to ``retr`` is called after the launch.
    debug, opt, lineinfo, fastmath, launch_bounds
        For the compiler. All other options are hints and have no effect.

    Raises
    ------
    NotImplementedError
        ``boundscheck`` or ``link``, which devmem's compilers do not support.
    """
    if kws.get("boundscheck"):
        raise NotImplementedError("bounds checking is not supported for CUDA")
    if link:
        raise NotImplementedError(f"devmem links no other code into kernels: {link!r}; use numba.cuda.jit for this one")
    given = {"debug": debug, "opt": opt, "lineinfo": lineinfo or None, "launch_bounds": launch_bounds} | kws
    options = {name: given[name] for name in OPTIONS if given.get(name) is not None}
    if kws.get("argtypes") is not None:
        warn_old_name("jit(argtypes=...)", "the signature as its first argument")
        func_or_sig = tuple(kws["argtypes"])
    if callable(func_or_sig) and not hasattr(func_or_sig, "return_type"):
        return _decorate(func_or_sig, (), device, options, kws.get("extensions", ()))
    signatures = _signatures(func_or_sig)
    return lambda function: _decorate(function, signatures, device, options, kws.get("extensions", ()))


def compiler_only(name: str) -> Any:
    """A name that only numba-cuda's compiler defines; AttributeError if numba-cuda is not installed."""
    place = COMPILER_ONLY[name]
    try:
        module = importlib.import_module(place)
    except ImportError as error:
        raise _NotInstalled(
            f"devmem.compat.numba_cuda.{name} is numba-cuda's, which cannot be imported here ({error}): "
            f"pip install 'devmem-arrays[cuda-kernels]'"
        ) from None
    return module if place.endswith(f".{name}") else getattr(module, name)


class LinkedFunction:
    """The result of ``declare_device`` in a simulated program: a kernel that calls it is refused, and others run."""

    works_on = "CUDA"

    def __init__(self, why_refused: str, name: str, *declared: Any, **options: Any) -> None:
        self.why_refused, self.__name__ = why_refused, name


class _NotInstalled(AttributeError):
    """A name of numba-cuda's, which is not installed; the simulator says what to write instead."""

    works_on = "CUDA"


def _decorate(
    function: Any, signatures: tuple[str, ...], device: bool, options: dict[str, Any], extensions: Any
) -> Any:
    if isinstance(function, DeviceFunction):
        function = function.function  # as Numba does with what it has made before
    if device:
        return devmem.kernel(signatures, device=True, **options)(function)
    return Dispatcher(function, signatures, options, extensions)


def _signatures(given: Any) -> tuple[str, ...]:
    """Signatures as strings."""
    if given is None:
        return ()
    texts = tuple(map(_signature_text, given if isinstance(given, list) else [given]))
    # Records have no name: a kernel that is declared for them is compiled for its arguments.
    return () if any("Record(" in each for each in texts) else texts


def _signature_text(signature: Any) -> str:
    """One signature as a string; Numba's types by their names."""
    if isinstance(signature, str):
        return signature
    arguments = getattr(signature, "args", signature)
    result = getattr(signature, "return_type", None)
    return f"{result or 'void'}({', '.join(map(_type_name, arguments))})".replace("none(", "void(", 1)


def _type_name(kind: Any) -> str:
    layout = getattr(kind, "layout", None)
    if type(kind).__name__ == "CPointer":
        return f"CPointer({_type_name(kind.dtype)})"
    if type(kind).__name__ in ("Tuple", "UniTuple"):
        return f"Tuple(({', '.join(map(_type_name, kind.types))},))"
    if layout is None:
        return str(kind)
    axes = [":"] * kind.ndim
    if layout in "CF":
        axes[-1 if layout == "C" else 0] = "::1"
    return f"{kind.dtype}[{', '.join(axes)}]"
