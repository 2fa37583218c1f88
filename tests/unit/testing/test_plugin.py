"""The pytest plugin and `hold`, with the public API."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import pytest
from waits import patience

import devmem
from devmem.testing import StreamHold, emulator
from devmem.toolkit.toolchain import cache_folder

pytest_plugins = ["pytester"]

CONFTEST = (
    ""
    if any(entry.name == "devmem" for entry in importlib.metadata.entry_points(group="pytest11"))
    else ('pytest_plugins = ["devmem.testing.plugin"]')
)


#: What is compiled is kept: pytester gives its tests another home.
CACHE = cache_folder("emulator").parents[1]


def needs_a_compiler() -> None:
    try:
        emulator.library("roc")
    except emulator.BuildError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))

    def run(code: str, *options: str, conftest: str = CONFTEST) -> pytest.RunResult:
        pytester.makeconftest(conftest)
        pytester.makepyfile(code)
        # A separate process: the chosen backend is state of the whole process.
        root = Path(devmem.__file__).parents[1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(root))
            patch.delenv("DEVMEM_BACKEND", raising=False)
            return pytester.runpytest_subprocess("-p", "no:randomly", *options, timeout=patience(140))

    return run


def test_backend_is_in_use(run: Callable[..., pytest.RunResult]) -> None:
    result = run(
        """
        import devmem

        def test_one(devmem_backend):
            assert devmem_backend == "host"
            assert devmem.current_device().backend == "host"
        """
    )
    result.assert_outcomes(passed=1)


def test_chosen_backends_are_parameters(run: Callable[..., pytest.RunResult]) -> None:
    result = run("def test_one(devmem_backend): pass\n", "--devmem-backend=host", "--devmem-backend=nowhere", "-v")
    result.assert_outcomes(passed=1, errors=1)  # a backend chosen by name is never skipped
    result.stdout.fnmatch_lines(["*test_one?host? PASSED*", "*nowhere*"])


def test_drivers_are_emulated_on_request(run: Callable[..., pytest.RunResult]) -> None:
    needs_a_compiler()
    result = run(
        """
        import os, subprocess, sys
        import devmem
        from devmem.testing import emulator

        def test_here(devmem_backend):
            assert devmem_backend == "roc"
            devmem.to_device([1.0]).free()
            assert any(name.startswith("hipMemcpy") for name in emulator.control("roc").calls())

        def test_below():
            code = "import devmem; devmem.to_device([1.0]); print(devmem.current_device())"
            assert subprocess.check_output([sys.executable, "-c", code], text=True) == "roc:0\\n"
        """,
        "--devmem-emulate=roc",
    )
    result.assert_outcomes(passed=2)


def test_an_unknown_driver_cannot_be_emulated(run: Callable[..., pytest.RunResult]) -> None:
    result = run("def test_one(): pass", "--devmem-emulate=quantum")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--devmem-emulate: *quantum*cuda, roc*"])


def test_the_plugin_finds_leaks(run: Callable[..., pytest.RunResult]) -> None:
    result = run(
        """
        import numpy as np
        import devmem

        kept = []

        def test_clean(devmem_backend, no_device_leaks):
            devmem.to_device(np.zeros(1000, np.uint8)).copy_to_host()

        def test_leaky(no_device_leaks, devmem_backend):
            kept.append(devmem.to_device(np.zeros(1000, np.uint8)))
        """
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*bytes of memory leaked*"])


#: Where no entry point brings the plugin, it has to be there before conftest files.
EARLY = ("-p", "devmem.testing.plugin") if CONFTEST else ()
PROGRAM = """
    import subprocess, sys
    from numba import cuda

    def test_here_and_in_a_child():
        assert cuda.implementation == "devmem" and cuda.is_available()
        code = "from numba import cuda; print(cuda.implementation)"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert child.stdout == "devmem\\n"
    """


def test_numba_cuda_is_simulated_on_request(run: Callable[..., pytest.RunResult]) -> None:
    result = run(PROGRAM, "--simulate", *EARLY)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["devmem: numba.cuda*simulated*"])


def test_conftest_files_get_it_too(pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]) -> None:
    pytester.makepyfile(**{"below/conftest": "from numba import cuda", "below/test_below": PROGRAM})
    run("", "--simulate", *EARLY, "below").assert_outcomes(passed=1)


OWN_OPTION = "def pytest_addoption(parser): parser.{}addoption('--simulate', action={!r})"


@pytest.mark.parametrize("group", ["", "getgroup('own')."])
@pytest.mark.parametrize("action", ["store_true", "store"])
def test_a_project_may_have_an_option_of_that_name(
    run: Callable[..., pytest.RunResult], group: str, action: str
) -> None:
    own = OWN_OPTION.format(group, action)
    run("def test_runs(): pass", *EARLY, conftest=own).assert_outcomes(passed=1)
    run(PROGRAM, "--devmem-simulate", *EARLY, conftest=own).assert_outcomes(passed=1)
    result = run("", "--simulate", *EARLY, conftest=own)
    result.stderr.fnmatch_lines(
        ["*--simulate is an option of this project and of devmem's plugin: *--devmem-simulate*"]
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_what_cannot_be_simulated_is_an_error_of_use(run: Callable[..., pytest.RunResult]) -> None:
    result = run("", "--simulate", "--devmem-emulate", "cuda", *EARLY)
    result.stderr.fnmatch_lines(["*--devmem-simulate runs kernels on the host, and --devmem-emulate cuda elsewhere*"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_suites_are_collected_through_their_subclass_only(run: Callable[..., pytest.RunResult]) -> None:
    result = run(
        """
        from devmem.backends.host.hooks import HostBackend
        from devmem.testing import DriverTests, MemoryResourceTests

        class TestMine(DriverTests):
            def make_backend(self):
                return HostBackend()
        """,
        "-k",
        "test_streams_are_distinct or test_trim_of_nothing",
        "-v",
    )
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*::TestMine::test_streams_are_distinct PASSED*"])


def test_hold_holds_a_public_stream(hold: Callable[..., StreamHold]) -> None:
    import numpy as np

    stream = devmem.stream()
    source = devmem.pinned_array(1000, np.uint8)
    source[:] = 7
    with hold(stream) as latch:
        array = devmem.to_device(source, stream)
        assert not stream.query()
        source[:] = 9
        latch.release()
        stream.synchronize()
        assert not latch.expired
    assert (array.copy_to_host() == 9).all()
