"""A trace of some steps of a training, which XProf and Perfetto open, and the slowest operations in it."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

logger = logging.getLogger(__name__)

FOLDER = "profile"
"""Where a run's folder has the trace."""
_SHOWN = 10
_OPERATION = ("hlo_op", "hlo_category")
"""What marks an event as an operation of a compiled program: on CPUs and GPUs, on TPUs."""


class Slow(NamedTuple):
    """An operation of a trace: its own time in seconds, without what it calls, and how often it ran."""

    name: str
    seconds: float
    times: int


class Profile:
    """Traces steps of a run in this process."""

    def __init__(self, text: str, folder: Path) -> None:
        """Traces nothing yet.

        Args:
            text: which steps, as in `log.profile`; "" is none.
            folder: the run's.
        """
        # Steps are counted from 1 on, so without a text nothing begins.
        self.first, self.last = (int(step) for step in (text or "0:0").split(":"))
        self.folder = folder / FOLDER
        self._tracing = False

    def check(self, start: int, end: int) -> None:
        """Warns where none of the steps to trace is among those from `start` to `end`."""
        if self.first and not (start < self.last and self.first <= end):
            logger.warning(f"log.profile={self.first}:{self.last} traces nothing: the steps are {start + 1} to {end}")

    def before(self, step: int, state: Any) -> None:
        """Begins the trace where this step is the first to trace, or the run begins behind that one.

        state: what the steps before it compute.
        """
        if 0 < self.first <= step <= self.last and not self._tracing:
            # The steps before are still on the device: they are none of those asked for.
            jax.block_until_ready(state)
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # Python's own calls would be most of the file
            jax.profiler.start_trace(self.folder, profiler_options=options)
            self._tracing = True

    def after(self, step: int, state: Any) -> None:
        """Ends the trace where this step, which makes `state`, is the last to trace; reports the slowest operations."""
        if self._tracing and step >= self.last:
            jax.block_until_ready(state)
            self.close()
            self._say()

    def close(self) -> None:
        """Ends a trace that a stopped training left open."""
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()
            logger.info(f"the trace is in {self.folder}: open it with XProf or Perfetto")

    def _say(self) -> None:
        files = sorted(self.folder.glob("plugins/profile/*/*.xplane.pb"))
        if not files or not (slow := slowest(files[-1])):
            return
        total = sum(each.seconds for each in slow)
        logger.info(f"slowest operations, of {total * 1e3:,.1f} ms on the devices")
        for each in slow[:_SHOWN]:
            logger.info(f"  {each.seconds * 1e3:9,.1f} ms  {each.seconds / total:4.0%}  {each.times:6,} x  {each.name}")


def slowest(file: Path) -> list[Slow]:
    """Returns the operations in a trace (*.xplane.pb), the slowest first, each by its own time over all devices."""
    seconds, counts = defaultdict[str, float](float), defaultdict[str, int](int)
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            # On TPUs a line of their own has the operations; others repeat them by module and step.
            if plane.name.startswith("/device:TPU") and line.name != "XLA Ops":
                continue
            events = (event for event in line.events if any(name in _OPERATION for name, _ in event.stats))
            for name, own in _own_times(events):
                seconds[name] += own / 1e9
                counts[name] += 1
    return sorted((Slow(name, own, counts[name]) for name, own in seconds.items()), key=lambda slow: -slow.seconds)


def _own_times(events: Iterable[Any]) -> Iterator[tuple[str, float]]:
    """Yields (name, nanoseconds) of the events of a line, without the events within each: a loop contains its body."""
    around: list[list[Any]] = []  # [name, end, own time]
    # Where two begin at one moment the longer one contains the other.
    for event in sorted(events, key=lambda event: (event.start_ns, -event.duration_ns)):
        while around and around[-1][1] <= event.start_ns:
            name, _, own = around.pop()
            yield name, own
        if around:
            around[-1][2] -= event.duration_ns
        around.append([event.name, event.start_ns + event.duration_ns, event.duration_ns])
    yield from ((name, own) for name, _, own in around)
