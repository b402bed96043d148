"""Processor time of the suite: a table by test file, and by what the time is spent on. A plugin of pytest.

A file's seconds are user and system time of the test's process and of the processes that ended in it. What several
files share, made by the fixture `once`, has rows of its own. Each file has a budget; `--budget` fails the suite where
one is passed.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

ROOT = Path(__file__).parents[1]
BUDGET = 90.0
"""Seconds that a file of the quick suite may take where both cores are busy: more than twice those at rest."""
CAUSES = ("seconds", "processes", "compiling")
"""All of a test's time; of it: that of other processes, and that of XLA's compilation in this one, in wall time."""
Spent = tuple[float, ...]
_COMPILING = "/jax/core/compile/backend_compile_duration"


def _since(began: Spent, now: Spent) -> Spent:
    return tuple(b - a for a, b in zip(began, now, strict=True))


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
        self._shared: list[tuple[str, Spent]] = []
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **_: str | int) -> None:
        self._compiling += duration_secs if event == _COMPILING else 0.0

    def _now(self) -> Spent:
        processes = _of_processes()
        return (time.process_time() + processes, processes, self._compiling)

    @contextmanager
    def shared(self, name: str) -> Iterator[None]:
        """What is done meanwhile counts for this name, and not for the test that is running."""
        began, before = self._now(), len(self._shared)
        yield
        spent = _since(began, self._now())
        for _, inside in self._shared[before:]:
            spent = _since(inside, spent)
        self._shared.append((name, spent))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        item.stash[_BEGAN] = self._now()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        report = yield
        if call.when == "teardown":
            spent = _since(item.stash[_BEGAN], self._now())
            for name, apart in self._shared:
                spent = _since(apart, spent)
                report.user_properties.append(("shared", (name, apart)))
            self._shared.clear()
            report.user_properties.append(("processor_time", spent))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "processor_time":
                self.by_test[report.nodeid] = spent = cast(Spent, value)
                self._count(report.nodeid.partition("::")[0], spent)
            elif name == "shared":
                self._count(*cast(tuple[str, Spent], value))

    def _count(self, row: str, spent: Spent) -> None:
        self.by_file[row] = [a + b for a, b in zip(self.by_file[row], spent, strict=True)]

    def over_budget(self) -> list[str]:
        """Returns a line for each file of tests that takes longer than it may."""
        files = {row: spent[0] for row, spent in self.by_file.items() if row.endswith(".py")}
        return [
            f"{file}: {seconds:.0f} s of {BUDGET:.0f}; mark cases as long, or share what is made"
            for file, seconds in sorted(files.items())
            if seconds > BUDGET
        ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            import resource

            output["processor_time"] = (*self._now(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        elif session.config.getoption("budget") and self.over_budget():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

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
        for line in self.over_budget():
            show(f"over its budget: {line}")
        for worker in filter(None, self.workers):
            show(f"{'a worker, with starts and collection; GiB at most: ' + format(worker[-1], '.2f'):<80} "
                 + " ".join(f"{each:10.1f}" for each in worker[:-1]))  # fmt: skip
        if file := os.environ.get("PROCESSOR_TIME"):
            import json

            Path(file).write_text(json.dumps({"files": self.by_file, "tests": self.by_test, "workers": self.workers}))


_BEGAN = pytest.StashKey[Spent]()
