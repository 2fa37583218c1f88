"""Records test events inside a test process as they happen."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import IO, Any

from .step import LONGEST_TAIL, SCRIPT

#: Driver errors after which the process can no longer use the device.
STICKY = frozenset({4, 46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})
#: Tests that release the last reference to the device's context: no other reference may be held.
SOLE_OWNERS = ("test_close_drops_what_was_not_freed",)


def child_pytest(events: str, settings: str, *args: str) -> int:
    """Run pytest, and record events as they happen."""
    import pytest

    asked = json.loads(Path(settings).read_text(encoding="utf-8"))
    sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != SCRIPT.parent]
    with Path(events).open("w", encoding="utf-8") as out:
        return int(pytest.main(list(args), plugins=[recorder(out, asked)]))


def recorder(out: IO[str], asked: dict[str, Any]) -> object:
    """The pytest plugin that writes one line of JSON for each event."""
    import pytest

    def tell(event: str, **what: Any) -> None:
        out.write(json.dumps({"event": event, **what}) + "\n")
        out.flush()

    class Recorder:
        def __init__(self) -> None:
            self.stderr = os.dup(2)  # pytest captures the usual standard output
            self.session: Any = None
            self.held: Any = None

        def pytest_sessionstart(self, session: Any) -> None:
            self.session = session
            self.hold()

        def hold(self) -> None:
            # Creating a context takes a good part of a second on a real device, and most tests open the device again.
            with contextlib.suppress(Exception):
                from cuda.bindings import driver as cu

                cu.cuInit(0)
                error, held = cu.cuDevicePrimaryCtxRetain(cu.cuDeviceGet(0)[1])
                self.held = None if error else held

        def let_go(self) -> None:
            if self.held is not None:
                from cuda.bindings import driver as cu

                cu.cuDevicePrimaryCtxRelease(cu.cuDeviceGet(0)[1])
                self.held = None

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
            done, first = set(asked["done"]), asked["first"]
            wanted = [item for item in items if not asked["only_backend"] or "devmem_backend" in item.fixturenames]
            wanted = wanted[:: max(1, len(wanted) // first)][:first] if first else wanted
            chosen = {item.nodeid for item in wanted}
            tell("collected", ids=list(chosen), deselected=[item.nodeid for item in items if item.nodeid not in chosen])
            items[:] = [item for item in wanted if item.nodeid not in done]

        def pytest_collectreport(self, report: Any) -> None:
            if report.outcome != "passed":
                text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
                tell("not_collected", id=report.nodeid, outcome=report.outcome, text=text[-LONGEST_TAIL:])

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: Any) -> Any:
            tell("started", id=item.nodeid)
            alone = item.name.partition("[")[0] in SOLE_OWNERS
            if alone:
                self.let_go()
            faulthandler.dump_traceback_later(asked["patience"], exit=True, file=self.stderr)
            try:
                return (yield)
            finally:
                faulthandler.cancel_dump_traceback_later()
                if alone:
                    self.hold()

        def pytest_runtest_logreport(self, report: Any) -> None:
            outcome, text, message = report.outcome, "", ""
            if hasattr(report, "wasxfail"):
                outcome = "xfailed" if outcome == "skipped" else outcome
            elif outcome == "skipped":
                text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
                text = text.removeprefix("Skipped: ")
            elif outcome == "failed":
                outcome = "failed" if report.when == "call" else "error"
                crash = getattr(report.longrepr, "reprcrash", None)
                message = str(crash.message).splitlines()[0] if crash and crash.message else ""
                text = report.longreprtext[-LONGEST_TAIL:]
            tell("report", id=report.nodeid, when=report.when, outcome=outcome, text=text, message=message)
            if report.failed and self.is_lost():
                tell("lost")
                self.session.shouldstop = "the device is lost for this process"

        def pytest_sessionfinish(self, exitstatus: int) -> None:
            tell("finished", status=int(exitstatus))

        def is_lost(self) -> bool:
            if self.held is None:
                return False
            from cuda.bindings import driver as cu

            _, current = cu.cuCtxGetCurrent()
            cu.cuCtxSetCurrent(self.held)
            (error,) = cu.cuStreamQuery(cu.CUstream(1))
            cu.cuCtxSetCurrent(current)
            return int(error) in STICKY

    return Recorder()
