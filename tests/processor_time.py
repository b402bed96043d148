"""Processor time of the suite: a table by test file, and by what the time is spent on. A plugin of pytest.

A file's seconds are user and system time of the test's process and of the processes that ended in it. A fixture that
several files share counts for the file that asked for it first.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

ROOT = Path(__file__).parents[1]
CAUSES = ("seconds", "processes", "compiling")
"""All of a test's time; of it: that of other processes, and that of XLA's compilation in this one, in wall time."""
Spent = tuple[float, ...]
_COMPILING = "/jax/core/compile/backend_compile_duration"


def _of_processes() -> float:
    times = os.times()
    return times.children_user + times.children_system


class ProcessorTime:
    """Measures each test where it runs, and adds up what all workers report."""

    def __init__(self) -> None:
        import jax

        self.by_file: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(CAUSES))
        self.by_test: dict[str, Spent] = {}
        self.workers: list[Spent] = []
        self._compiling = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **_: str | int) -> None:
        self._compiling += duration_secs if event == _COMPILING else 0.0

    def _now(self) -> Spent:
        processes = _of_processes()
        return (time.process_time() + processes, processes, self._compiling)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        item.stash[_BEGAN] = self._now()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        report = yield
        if call.when == "teardown":
            spent = tuple(now - began for now, began in zip(self._now(), item.stash[_BEGAN], strict=True))
            report.user_properties.append(("processor_time", spent))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "processor_time":
                spent = cast(Spent, value)
                file = report.nodeid.partition("::")[0]
                self.by_file[file] = [a + b for a, b in zip(self.by_file[file], spent, strict=True)]
                self.by_test[report.nodeid] = spent

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            import resource

            output["processor_time"] = (*self._now(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.workers.append(node.workeroutput.get("processor_time", ()))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self.by_file) < 2:
            return
        show = terminalreporter.write_line
        terminalreporter.section("processor time, seconds")
        rows = sorted(self.by_file.items(), key=lambda row: -row[1][0])
        show(f"{'file':<80} " + " ".join(f"{cause:>10}" for cause in CAUSES))
        for file, spent in rows[:40]:
            show(f"{file:<80} " + " ".join(f"{each:10.1f}" for each in spent))
        total = [sum(column) for column in zip(*self.by_file.values(), strict=True)]
        show(f"{'all tests':<80} " + " ".join(f"{each:10.1f}" for each in total))
        for worker in filter(None, self.workers):
            show(f"{'a worker, with starts and collection; GiB at most: ' + format(worker[-1], '.2f'):<80} "
                 + " ".join(f"{each:10.1f}" for each in worker[:-1]))  # fmt: skip
        if file := os.environ.get("PROCESSOR_TIME"):
            import json

            Path(file).write_text(json.dumps({"files": self.by_file, "tests": self.by_test, "workers": self.workers}))


_BEGAN = pytest.StashKey[Spent]()
