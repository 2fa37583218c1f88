"""``devmem simulate``: programs that are not changed, with stand-ins for the packages that they import, and without them."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from waits import patience

from devmem.cli.execution import wait_for

ROOT = Path(__file__).parents[3]
CLI = [sys.executable, "-m", "devmem.cli", "simulate"]
MODULE = [sys.executable, "-m", "devmem.simulate"]

ADD = """
    import numpy as np
    from numba import cuda

    @cuda.jit
    def add(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] += x[i]

    def added():
        x, y = cuda.to_device(np.arange(6.0)), cuda.to_device(np.ones(6))
        add[2, 4](x, y)
        return y.copy_to_host().tolist()
"""


@pytest.fixture
def write(tmp_path):
    """Write a file below the folder in which commands run."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def run(tmp_path):
    """Run a command in that folder; ``packages`` below it holds what is installed."""

    def run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("DEVMEM_", "NUMBA_"))}
        environment |= {"PYTHONPATH": os.pathsep.join([str(tmp_path / "packages"), str(ROOT)]), **variables}
        given = list(map(str, command))
        return subprocess.run(
            given, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=patience(140)
        )

    return run


@pytest.fixture
def numba(write):
    """Packages that look like numba and numba-cuda: importing what is to be replaced fails."""
    write("packages/numba/__init__.py", "njit = 'njit'\n")
    write("packages/numba/core/__init__.py", "")
    write(
        "packages/numba/core/config.py",
        "import os\nENABLE_CUDASIM = int(os.environ.get('NUMBA_ENABLE_CUDASIM', 0))\n",
    )
    write("packages/numba/cuda/__init__.py", "raise ImportError('no CUDA')\n")
    write("packages/numba/cuda/types.py", "float32, where, __all__ = 'a type', 'numba', ['float32']\n")
    write("packages/numba/cuda/tests/__init__.py", "from numba import cuda\nwhere = __name__, cuda.implementation\n")
    write("packages/numba/cuda/cudadrv/__init__.py", "raise ImportError('no CUDA')\n")
    write(
        "packages/numba/cuda/cudadrv/nvvm.py",
        "from .driver import driver, _have_nvjitlink, _Linker\nfrom .. import serialize\n",
    )
    write("packages/numba/cuda/serialize.py", "")


# -- what the program gets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [[*CLI, "--", sys.executable], MODULE], ids=["command", "module"])
def test_a_program_runs_as_it_is_and_its_exit_status_counts(run, write, start):
    write("helper/kernels.py", ADD)
    program = """
        import sys
        import numba.cuda
        import numpy as np
        from helper.kernels import added, cuda
        assert numba.cuda is cuda and cuda.is_available() and len(cuda.gpus) == 1
        with cuda.pinned(np.zeros(3)):
            cuda.event().record(cuda.stream())
        print(added(), sys.argv[1:])
        raise SystemExit(7)
    """
    write("program.py", program)
    done = run(*start, "program.py", "--shuffle", "x")
    assert done.stdout == "[1.0, 2.0, 3.0, 4.0, 5.0, 6.0] ['--shuffle', 'x']\n", done.stderr
    assert done.returncode == 7
    assert done.stderr.count("\n") == 1
    assert "simulated" in done.stderr


@pytest.mark.parametrize(
    ("options", "module"),
    [
        ([], ["-m", "devmem.simulate"]),
        (["-O", "-X", "utf8", "-Werror"], ["-m", "devmem.simulate"]),
        (["-O", "-W", "error"], ["-mdevmem.simulate"]),
        (["-uB"], None),
    ],
)
def test_the_options_of_python_are_the_programs_too(run, options, module):
    program = ["-c", "import sys; print(sys.flags, sys.warnoptions, sorted(sys._xoptions), sys.argv)", "-m", "x"]
    started = [*options, *module] if module else ["-uBm", "devmem.simulate"]
    done = run(sys.executable, *started, "--fast", *program)
    assert done.stdout == run(sys.executable, *options, *program).stdout != "", done.stderr


def test_a_python_that_ignores_the_environment_is_told_so(run):
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); runpy.run_module('devmem.simulate', None, '__main__')"
    )
    done = run(sys.executable, "-E", "-c", code, "program.py")
    assert done.returncode == 2
    assert "-E and -S ignore the environment" in done.stderr


def test_numba_is_the_installed_one_and_numba_cuda_the_drop_in(run, numba):
    code = """
        import numba, numba.cuda.tests, numba.cuda.cudadrv.nvvm
        from numba import cuda, njit
        from numba.cuda import types, float32, config
        from numba.cuda.cudadrv import nvvm, driver
        from numba.cuda.cudadrv.devicearray import DeviceNDArray
        import devmem.compat.numba_cuda as drop_in
        assert cuda.to_device is drop_in.to_device and driver is drop_in.cudadrv.driver
        assert DeviceNDArray is drop_in.cudadrv.devicearray.DeviceNDArray
        assert (njit, types.where, float32) == ("njit", "numba", "a type")
        assert numba.cuda.tests.where == ("numba.cuda.tests", "devmem")
        assert not config.ENABLE_CUDASIM
        assert cuda.HAS_NUMBA and not hasattr(cuda, "where")
        try:
            import numba.cuda.nothing
        except ModuleNotFoundError as error:
            assert error.name == "numba.cuda.nothing"
            print("done")
    """
    done = run(*MODULE, "-c", textwrap.dedent(code), NUMBA_ENABLE_CUDASIM="1", DEVMEM_BACKEND="cuda")
    assert done.stdout == "done\n", done.stderr


def test_what_the_installed_package_imports_with_itself_is_an_attribute(run, numba, write):
    write("packages/numba/cuda/compiler.py", "where = 'numba'\n")
    write("packages/numba/cuda/broken.py", "import nothing_of_that_name\n")
    target = """
        from numba.cuda.cudadrv.driver import ERROR_MAP, make_logger  # as Numba's does
        where = "numba"
        make_logger().info(ERROR_MAP.get(1))
    """
    write("packages/numba/cuda/target.py", target)
    code = """
        from numba import cuda
        assert (cuda.compiler.where, cuda.target.where) == ("numba", "numba")
        assert cuda.cudadrv.runtime.runtime is cuda.runtime
        assert not hasattr(cuda, "broken") and not hasattr(cuda, "nothing") and not hasattr(cuda.cudadrv, "nothing")
        print("done")
    """
    done = run(*MODULE, "-c", textwrap.dedent(code))
    assert done.stdout == "done\n", done.stderr


def test_the_module_of_reductions_has_the_drop_ins(run, numba, write):
    write("packages/numba/cuda/kernels/reduction.py", "raise ImportError('no CUDA')\n")
    code = """
        from numba import cuda
        from numba.cuda.kernels.reduction import Reduce
        print(Reduce is cuda.Reduce)
    """
    done = run(*MODULE, "-c", textwrap.dedent(code))
    assert done.stdout == "True\n", done.stderr


def test_code_that_is_linked_is_refused_in_the_kernel_that_calls_it(run, write):
    program = """
        import numpy as np
        from numba import cuda
        from numba.cuda import declare_device

        linked = declare_device("linked", "int32(int32)", link="linked.cu")

        @cuda.jit
        def other(x):
            x[0] = 1

        @cuda.jit
        def calling(x):
            x[0] = linked(1)

        x = cuda.to_device(np.zeros(1))
        other[1, 1](x)
        print(x.copy_to_host())
        calling[1, 1](x)
    """
    write("program.py", program)
    done = run(*MODULE, "program.py")
    assert done.stdout == "[1.]\n", done.stderr
    assert "linked works on CUDA alone: its code has to be linked" in done.stderr
    assert "program.py:14 in calling: x[0] = linked(1)" in done.stderr


@pytest.mark.parametrize(
    "name", ["compile", "compile_ptx", "compile_for_current_device", "compile_ptx_for_current_device"]
)
def test_nothing_is_compiled_for_a_gpu(run, name):
    code = f"from numba.cuda import {name}; {name}(abs, 'int32(int32)', device=True)"
    assert (
        f"NotImplementedError: cuda.{name} compiles for a GPU, and numba.cuda is simulated"
        in run(*MODULE, "-c", code).stderr
    )


def test_a_name_that_is_not_there_is_reported_with_the_programs_line(run, write):
    program = """
        import numpy as np
        from numba import cuda

        @cuda.jit
        def missing(x):
            x[0] = cuda.nothing(x[0])

        missing[1, 1](cuda.to_device(np.zeros(1)))
    """
    write("program.py", program)
    assert "program.py:7 in missing: x[0] = cuda.nothing(x[0])" in run(*MODULE, "program.py").stderr


def test_it_comes_before_the_finder_that_numba_cuda_installs(run, numba, write):
    write("packages/numba_cuda/__init__.py", "")
    write("packages/numba_cuda/numba/cuda/__init__.py", "raise ImportError('no CUDA')\n")
    write("packages/numba_cuda/numba/cuda/types/__init__.py", "where = 'numba-cuda'\n")
    finder = """
        import sys
        from importlib.machinery import PathFinder

        class Redirector:  # as numba-cuda's: for the names of numba.cuda it asks all finders, with its own path
            def find_spec(self, name, path=None, target=None):
                if "numba.cuda" not in name or any("numba_cuda" in each for each in path):
                    return None
                path = [each.replace("packages/numba", "packages/numba_cuda/numba") for each in path]
                found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
                return next((spec for spec in found if spec), None)

        sys.meta_path.insert(0, Redirector())
    """
    write("packages/sitecustomize.py", finder)  # after ours, and so before it in the list
    code = "from numba import cuda; from numba.cuda import types; print(cuda.implementation, types.where, cuda.grid)"
    done = run(*MODULE, "-c", code)
    assert done.stdout.startswith("devmem numba-cuda <"), done.stderr


def test_the_successor_is_replaced_too(run, write):
    write("packages/numba_cuda_mlir/__init__.py", "")
    write("packages/numba_cuda_mlir/types.py", "int8 = 'a type'\n")
    write("packages/numba_cuda_mlir/cuda/__init__.py", "raise ImportError('no CUDA')\n")
    write("packages/numba_cuda_mlir/cuda/vector.py", "where = 'installed'\n")
    code = """
        from numba_cuda_mlir import cuda, types
        from numba_cuda_mlir.cuda import vector
        print(cuda.implementation, types.int8, vector.where, cuda.is_available())
    """
    done = run(*MODULE, "-c", textwrap.dedent(code))
    assert done.stdout == "devmem a type installed True\n", done.stderr


CAPABILITY = """
    from numba import cuda
    from numba.cuda.cudadrv.driver import Device
    device, *same = cuda.get_current_device(), cuda.gpus[0], cuda.current_context().device, Device(0)
    assert {each.compute_capability for each in (device, *same)} == {(5, 2)}  # what numba's simulator says
    assert (device.COMPUTE_CAPABILITY_MAJOR, device.COMPUTE_CAPABILITY_MINOR) == (5, 2)
    assert device.compute_capability >= (5, 0) and device.simulated
    assert "compute_capability" not in device.native.info.facts  # devmem's own device makes nothing up
    cuda.detect()
"""


def test_the_device_has_a_compute_capability_and_says_that_it_is_simulated(run):
    done = run(*MODULE, "-c", textwrap.dedent(CAPABILITY))
    assert "Compute Capability: 5.2 (simulated)\n" in done.stdout, done.stderr


COPIES = """
    import warnings
    import numpy as np
    from numba import cuda

    @cuda.jit
    def first(x):
        x[0] = 1

    def warned(*filters):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for filter, *arguments in filters:
                filter("ignore", *arguments)
            first[1, 1](host := np.zeros(3))
        assert host[0] == 1
        return [each.category for each in seen if each.filename == __file__ and "argument 0" in str(each.message)]
"""


def test_numbas_filters_and_settings_reach_the_warning_of_copies(run, numba, write):
    classes = """
        class NumbaWarning(Warning):
            def __init__(self, msg, loc=None, highlighting=True):
                raise NotImplementedError("with colours")

        class NumbaPerformanceWarning(NumbaWarning):
            pass
    """
    for core in ("core", "cuda/core"):
        write(f"packages/numba/{core}/errors.py", classes)
    write("packages/numba/cuda/core/__init__.py", "")
    switches = "CUDA_WARN_ON_IMPLICIT_COPY, DISABLE_PERFORMANCE_WARNINGS = 1, 0\n"
    write("packages/numba/cuda/core/config.py", switches)
    write("packages/numba/core/config.py", switches)
    program = """
        import devmem
        from copies import warned, warnings

        assert warned() == [devmem.DevmemWarning]  # nothing of numba is imported for it
        from numba.core.errors import NumbaPerformanceWarning
        [category] = warned()
        assert issubclass(category, NumbaPerformanceWarning) and issubclass(category, devmem.DevmemWarning)
        from numba.cuda.core.errors import NumbaPerformanceWarning as InNumbaCuda
        for each in (NumbaPerformanceWarning, InNumbaCuda, devmem.DevmemWarning):
            assert warned((warnings.simplefilter, each)) == []
        assert warned((warnings.filterwarnings, "Host array used in CUDA kernel will incur copy overhead")) == []

        from numba.core import config
        from numba.cuda.core import config as in_numba_cuda
        for module in (config, in_numba_cuda):
            for name, silent in (("CUDA_WARN_ON_IMPLICIT_COPY", 0), ("DISABLE_PERFORMANCE_WARNINGS", 1)):
                before = getattr(module, name)
                setattr(module, name, silent)
                assert warned() == []
                setattr(module, name, before)
        assert len(warned()) == len(warned()) == 1
        print("done")
    """
    write("copies.py", COPIES)
    write("program.py", program)
    done = run(*MODULE, "program.py")
    assert done.stdout == "done\n", done.stderr


def test_numbas_other_switches_are_obeyed_too(run, numba, write):
    code = """
        from unittest.mock import patch
        from numba import cuda
        from numba.core import config
        array = cuda.to_device([1.0], stream=cuda.stream())
        for waits in (True, False):
            config.CUDA_ARRAY_INTERFACE_SYNC = waits
            with patch.object(cuda.cudadrv.driver.Stream, "synchronize") as waited:
                cuda.from_cuda_array_interface(array.__cuda_array_interface__, owner=array)
            assert waited.called is waits
        cuda.close()
        config.DISABLE_CUDA = 1
        assert not cuda.is_available()
        assert "DISABLE_CUDA" in cuda.cuda_error()
        print("done")
    """
    done = run(*MODULE, "-c", textwrap.dedent(code))
    assert done.stdout == "done\n", done.stderr


def test_without_numba_it_has_numba_cuda_alone(run):
    code = """
        import numba.cuda
        from numba import cuda
        from numba_cuda_mlir import cuda as other
        assert cuda.jit is other.jit
        try:
            from numba import njit
        except ImportError:
            print("no njit")
        try:
            numba.float32
        except AttributeError as error:
            print(error)
    """
    done = run(*MODULE, "-c", textwrap.dedent(code))
    assert done.stdout.startswith("no njit\nnumba has no 'float32': numba is not installed"), done.stderr
    assert done.stdout.endswith("pip install numba\n")


def test_a_program_that_can_do_without_numba_does(run):
    code = """
        from numba import cuda
        for statement in ("import numba", "import numba as nb", "from numba import njit, prange", "import numba_cuda_mlir"):
            try:
                exec(statement)
            except ImportError as error:
                print(error)
        import numba.cuda as again
        assert again.jit is cuda.jit
    """
    done = run(*MODULE, "-c", textwrap.dedent(code))
    wanted = "No module named 'numba': devmem simulates numba.cuda alone: pip install numba"
    assert done.stdout.splitlines()[:3] == [wanted] * 3, done.stderr
    assert "pip install numba-cuda-mlir" in done.stdout


def test_fast_without_numba_is_the_simulator(run, write):
    write("program.py", textwrap.dedent(ADD) + "\nprint(added())\n")
    done = run(*CLI, "--fast", "-o", "report.json", "--", sys.executable, "program.py")
    assert done.stdout == "[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]\n", done.stderr


def test_a_python_without_devmem_says_what_to_install(run):
    code = "import sys; sys.modules['devmem'] = None; from numba import cuda"
    done = run(*MODULE, "-c", code)
    assert done.returncode == 1
    assert "pip install 'devmem-arrays[sim]' there" in done.stderr


def test_names_can_be_replaced_by_tests(run):
    code = """
        from unittest.mock import patch
        from numba import cuda
        with patch("numba.cuda.is_available", return_value=False):
            assert not cuda.is_available()
        print(cuda.is_available())
    """
    assert run(*MODULE, "-c", textwrap.dedent(code)).stdout == "True\n"


def test_numbas_own_decorators_find_the_target(run):
    # numba.vectorize(..., target="cuda") asks for these, and calls them so.
    code = """
        import numpy as np
        from numba.cuda.vectorizers import CUDAGUFuncVectorize, CUDAVectorize
        made = CUDAVectorize(lambda x, y: x + y, identity=None, cache=False, targetoptions={})
        made.add("float64(float64, float64)")
        made.disable_compile()
        assert made.build_ufunc()(np.arange(3.0), 1).tolist() == [1, 2, 3]

        def total(array, out):
            out[0] = 0
            for i in range(array.size):
                out[0] += array[i]

        made = CUDAGUFuncVectorize(total, "(n)->()", identity=None, cache=False, targetoptions={}, writable_args=())
        made.add("void(float64[:], float64[:])")
        print(made.build_ufunc()(np.ones((2, 3))).tolist())
    """
    done = run(*MODULE, "-c", textwrap.dedent(code))
    assert done.stdout == "[3.0, 3.0]\n", done.stderr


# -- processes ---------------------------------------------------------------------------------------------------------


def test_children_simulate_too(run, write):
    program = """
        import multiprocessing
        import subprocess
        import sys

        def child(number):
            from numba import cuda
            assert cuda.implementation == "devmem"
            print(number, flush=True)

        if __name__ == "__main__":
            for number, method in enumerate(("spawn", "fork")):
                process = multiprocessing.get_context(method).Process(target=child, args=(number,))
                process.start()
                process.join()
            subprocess.run([sys.executable, "-c", "from program import child; child(2)"])
    """
    write("program.py", program)
    done = run(*CLI, "--", sys.executable, "program.py")
    assert done.stdout == "0\n1\n2\n", done.stderr


def test_a_sitecustomize_of_the_users_runs_after_it(run, write):
    write("packages/sitecustomize.py", "from numba import cuda\nprint(__name__, cuda.implementation)\n")
    code = "import sys; print('packages' in sys.modules['sitecustomize'].__file__)"
    assert run(*MODULE, "-c", code).stdout == "sitecustomize devmem\nTrue\n"


def test_nested_it_stands_once_in_front_of_the_users_paths(run, tmp_path):
    code = "import os; print(os.environ['PYTHONPATH'].split(os.pathsep)[1:], os.environ['DEVMEM_SIM_SHUFFLE'])"
    done = run(*CLI, "--shuffle", "3", "--", *CLI, "--race-check", "--", sys.executable, "-c", code)
    assert done.stdout == f"{[str(tmp_path / 'packages'), str(ROOT)]} 3\n", done.stderr


def test_what_is_imported_already_cannot_be_simulated(run, numba, write):
    write("packages/numba/cuda/__init__.py", "")
    code = "import numba.cuda\nimport devmem.simulate\ndevmem.simulate.start()"
    assert "RuntimeError: numba.cuda is imported already" in run(sys.executable, "-c", code).stderr


def test_where_a_device_of_another_backend_is_open_nothing_is_simulated(run):
    code = """
        import devmem
        import devmem.simulate
        from devmem.testing import NullBackend
        devmem.register_backend(NullBackend("idle"))
        with devmem.use_backend("idle"):
            devmem.device_array(1)
        try:
            devmem.simulate.start()
        except RuntimeError as error:
            print(error)
        devmem.close()
        devmem.simulate.start()
        from numba import cuda
        print(cuda.to_device([1]).device)
    """
    told, device = run(sys.executable, "-c", textwrap.dedent(code)).stdout.splitlines()
    assert told.startswith("a device of the backend idle is open in this process")
    assert device == "host:0"


@pytest.mark.parametrize("options", [[], ["-o", "report.json"]], ids=["plain", "report"])
def test_a_command_that_is_not_there_ends_as_in_a_shell(run, tmp_path, options):
    assert run(*CLI, *options, "--", "no-such-command").returncode == 127
    assert run(*CLI, *options, "--", tmp_path).returncode == 126


def test_a_program_is_needed(run):
    assert run(*CLI).returncode == 2
    assert run(*MODULE, "--fast").returncode == 2


# -- the report --------------------------------------------------------------------------------------------------------

MISTAKES = """
    import multiprocessing
    import numpy as np
    from numba import cuda

    @cuda.jit
    def fill(x):
        x[cuda.grid(1)] = 1                                      # beyond the end, and not

    @cuda.jit
    def turn(x):
        s, t = cuda.shared.array(4, np.int64), cuda.threadIdx.x
        s[t] = t
        s[(t + 1) % 4] = 7                                       # no barrier before: written by two

    @cuda.jit
    def part(x):
        if cuda.threadIdx.x:
            cuda.syncthreads()                                   # not reached by all

    @cuda.jit
    def refused(x):
        x[0] = len([1])

    def attempt(kernel, threads=4):
        try:
            kernel[1, threads](cuda.to_device(np.zeros(4, np.int64)))
        except Exception as error:
            pass

    if __name__ == "__main__":
        # First: a device that is in use cannot be used in the child of a fork.
        child = multiprocessing.get_context("fork").Process(target=attempt, args=(fill,))
        child.start()
        child.join()
        for kernel, threads in ((fill, 2), (fill, 6), (fill, 6), (turn, 4), (part, 4), (refused, 1)):
            attempt(kernel, threads)
        print("ended")
"""


def test_the_report_has_each_kernel_and_each_finding_once(run, write, tmp_path):
    program = write("program.py", MISTAKES)
    done = run(*CLI, "--race-check", "-o", "report.json", "--", sys.executable, "program.py")
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["exit_status"], report["processes"]) == (0, 2)
    lines = program.read_text().splitlines()
    kernels = {each["kernel"]: each for each in report["kernels"]}
    assert {name: each["launches"] for name, each in kernels.items()} == {"fill": 4, "turn": 1, "part": 1, "refused": 0}
    assert kernels["fill"]["threads"] == 2 + 6 + 6 + 4
    assert {each["file"] for each in report["kernels"]} == {str(program)}
    told = {(each["kernel"], each["kind"]): each for each in report["findings"]}
    assert set(told) == {("fill", "out of bounds"), ("turn", "race"), ("part", "divergence"), ("refused", "misuse")}
    found = told["fill", "out of bounds"]
    assert (found["block"], found["thread"], found["times"]) == ([0, 0, 0], [4, 0, 0], 2)
    for name, text in (("fill", "beyond the end"), ("turn", "s[t] = t"), ("part", "not reached by all")):
        [line] = [each["line"] for each in report["findings"] if each["kernel"] == name]
        assert text in lines[line - 1], name


def test_the_report_says_which_launches_were_compiled_and_why_others_were_not(run, write, tmp_path):
    program = """
        import numpy as np
        from numba import cuda

        @cuda.jit
        def fill(x):
            x[cuda.grid(1)] = 1

        @cuda.jit
        def swap(x):
            cuda.atomic.exch(x, 0, 1)

        x = cuda.to_device(np.zeros(4))
        for kernel in (fill, fill, swap):
            kernel[1, 4](x)
    """
    write("program.py", program)
    done = run(*MODULE, "--fast", "-o", "report.json", "program.py")
    assert done.returncode == 0, done.stderr
    fill, swap = json.loads((tmp_path / "report.json").read_text())["kernels"]
    if importlib.util.find_spec("numba"):
        assert (fill["compiled"], fill["not_compiled"], fill["compiling"] > 0) == (2, {}, True)
        told = "it uses cuda.atomic.exch, which depends on the order of threads"
        assert (swap["compiled"], swap["not_compiled"]) == (0, {told: 1})
    else:
        why = "numba is not installed: pip install numba"
        assert (fill["compiled"], fill["not_compiled"], fill["compiling"] > 0) == (0, {why: 2}, True)
        assert (swap["compiled"], swap["not_compiled"]) == (0, {why: 1})


def test_the_report_is_the_end_of_the_standard_output(run, write):
    write("program.py", MISTAKES)
    done = run(*MODULE, "--report", "json", "program.py")
    first, _, rest = done.stdout.partition("\n")
    assert first == "ended"
    assert json.loads(rest)["command"] == [sys.executable, "program.py"]


def test_a_report_that_cannot_be_written_is_told_before_the_command_runs(run):
    done = run(*CLI, "-o", "no-such-folder/report.json", "--", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no-such-folder/report.json: No such file" in done.stderr


def test_with_a_report_a_signal_reaches_the_command(run):
    code = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    done = run(*CLI, "-o", "report.json", "--", sys.executable, "-c", code)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_before_the_command_has_started_reaches_it(monkeypatch, number):
    def late(*arguments, start=subprocess.Popen, **options):
        os.kill(os.getpid(), number)
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", late)
    assert wait_for([sys.executable, "-c", "import signal; signal.pause()"], os.environ) == 128 + number


def test_a_log_that_cannot_be_written_is_a_warning_and_the_kernel_runs(run, write):
    write("program.py", textwrap.dedent(ADD) + "\nprint(added())\n")
    done = run(*MODULE, "program.py", DEVMEM_SIM_LOG="no-such-folder/log")
    assert done.stdout == "[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]\n"
    assert "DevmemWarning: DEVMEM_SIM_LOG='no-such-folder/log' cannot be written" in done.stderr
