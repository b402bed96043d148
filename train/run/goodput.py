"""Goodput: the share of a run's wall time, over all its starts, that went into training steps that were kept.

At each moment the main thread is in exactly one part, so the parts add up to the wall time by construction. What counts
is the time that the host is blocked: a checkpoint that is written in the background costs nothing.

The totals stand in metrics.jsonl, in records of the split `goodput`. A start takes them over from the newest one; the
seconds of steps beyond the checkpoint that it resumes from become those of steps that are done twice.
"""

import contextlib
import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

from contexture.train.run.progress import duration

Part: TypeAlias = Literal[
    "steps", "start_up", "compiling", "waiting_for_data", "evaluating", "saving", "repeated_steps", "other"
]
PARTS: tuple[Part, ...] = get_args(Part)
SPLIT = "goodput"
"""The split of these records in metrics.jsonl."""


class _Process:
    began: float | None = None
    """When this process was created, by time.monotonic; None once a training has counted from there."""


def from_process_start() -> None:
    """Lets the first training of this process count from the process's creation: it is a command of its own.

    A notebook or a program that trains does other things before: its trainings count from their call.
    """
    _Process.began = time.monotonic()
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        # Linux: field 22 of the process's line is its start, in ticks since the machine started. Its name, the second
        # field, is in brackets and may have blanks.
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        _Process.began -= max(age, 0.0)


class Earlier:
    """The totals of a run's earlier starts, from the records of its metrics.jsonl in their order."""

    def __init__(self, step: int) -> None:
        """step: the checkpoint that this start resumes from; 0 for none."""
        self.step = step
        self.starts = 0
        self._seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        # The newest step up to `step` that has a record, and the seconds of the steps up to there.
        self._at, self._kept = -1, 0.0

    def add(self, record: Mapping[str, Any]) -> None:
        """Takes the next record; those of other splits count nothing."""
        if record["split"] != SPLIT:
            return
        self.starts = round(_figure(record, "starts"))
        self._seconds = {part: _figure(record, f"{part}_seconds") for part in PARTS}
        # The first one of its step: later ones include time of steps behind it, whose figures were not fetched yet.
        if self.step and self._at < record["step"] <= self.step:
            self._at, self._kept = record["step"], self._seconds["steps"]

    @property
    def seconds(self) -> dict[Part, float]:
        """Seconds by part: steps beyond the checkpoint are done twice."""
        kept = min(self._kept, self._seconds["steps"])
        twice = self._seconds["repeated_steps"] + self._seconds["steps"] - kept
        return {**self._seconds, "steps": kept, "repeated_steps": twice}


def _figure(record: Mapping[str, Any], name: str) -> float:
    """Returns a figure of a record; 0 where damage has made something else of it."""
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and 0 <= value < math.inf else 0.0


class Goodput:
    """The clock of one start: `with goodput.part("saving"): …` counts the block's seconds for this part alone."""

    def __init__(self) -> None:
        """Counts from now on as start-up; see also `from_process_start`."""
        began, _Process.began = _Process.began, None
        self.began = self._since = time.monotonic() if began is None else began
        self._part: Part = "start_up"
        self._seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
        self._earlier = Earlier(0)

    def take_over(self, earlier: Earlier) -> None:
        """Adds the totals of the run's earlier starts."""
        self._earlier = earlier

    @contextlib.contextmanager
    def part(self, part: Part) -> Iterator[None]:
        """Counts the time of this block for a part; blocks nest, and the inner one counts."""
        before = self._switch(part)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, part: Part) -> Part:
        """Counts the time up to now for the part so far, and returns that one."""
        now, before = time.monotonic(), self._part
        self._seconds[before] += now - self._since
        self._since, self._part = now, part
        return before

    def record(self, step: int) -> dict[str, Any]:
        """Returns the totals of all starts up to now as a record of metrics.jsonl.

        step: the newest step whose figures are recorded.
        """
        self._switch(self._part)
        earlier = self._earlier.seconds
        seconds = {part: earlier[part] + own for part, own in self._seconds.items()}
        wall = sum(seconds.values())
        return {
            "step": step,
            "split": SPLIT,
            "goodput": round(seconds["steps"] / wall, 5) if wall else 0.0,
            "wall_seconds": round(wall, 3),
            "starts": self._earlier.starts + 1,
            **{f"{part}_seconds": round(own, 3) for part, own in seconds.items()},
        }


def describe_goodput(record: Mapping[str, Any], most: int = len(PARTS)) -> str:
    """Returns a record for people: "goodput 93.1% of 0:12:04 in 2 starts: saving 4.2%, start-up 2.7%".

    most: how many of the other parts to list, the largest first; those below 0.1 % are left out.
    """
    wall = _figure(record, "wall_seconds")
    shares: dict[Part, float] = {part: _figure(record, f"{part}_seconds") / max(wall, 1e-9) for part in PARTS}
    others = sorted(PARTS[1:], key=lambda part: -shares[part])
    listed = [f"{_NAMES.get(part, part)} {shares[part]:.1%}" for part in others[:most] if shares[part] >= 0.001]
    starts = round(_figure(record, "starts"))
    text = f"goodput {shares['steps']:.1%} of {duration(wall)}" + (f" in {starts} starts" if starts > 1 else "")
    return text + (f": {', '.join(listed)}" if listed else "")


_NAMES: dict[Part, str] = {
    "start_up": "start-up",
    "waiting_for_data": "waiting for data",
    "repeated_steps": "steps done twice",
}
"""Part → its name for people, where that differs."""
