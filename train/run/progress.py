"""Shows the progress of a run: a bar on a terminal and in a notebook, else a line every few seconds."""

import contextlib
import io
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID
from rich.text import Text

from contexture.train.run.console import in_notebook

logger = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 5.0
_WIDE = 90
"""Columns from which a terminal has room for a long bar."""

# In order of importance: a bar that has no room for all shows the first ones.
_SHOWN = {
    "loss": "loss {:.4f}",
    "accuracy": "accuracy {:.1%}",
    "entity_f1": "entity F1 {:.1%}",
    "exact_match": "exact match {:.1%}",
    "pearson": "Pearson {:.3f}",
    "mlm_accuracy": "mlm {:.1%}",
    "nsp_accuracy": "nsp {:.1%}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "mfu": "MFU {:.1%}",
    "learning_rate": "lr {:.1e}",
    "data_wait": "waits for data {:.0%}",
}
_UNREMARKABLE = {"data_wait": 0.05}
"""Figure → the value up to which it is not worth showing. metrics.jsonl has it all the same."""


def figures_of(record: Mapping[str, Any], metric: str = "loss") -> list[str]:
    """Returns a record's figures for people, the most important first: ["loss 6.4491", "3,417 tokens/s", …].

    metric: shown in any case, since it decides which checkpoint is the best.
    """
    shown = [
        form.format(record[name])
        for name, form in _SHOWN.items()
        if record.get(name) is not None and not record[name] <= _UNREMARKABLE.get(name, float("-inf"))
    ]
    # Of a mixture, the loss of each source beside their mean.
    sources = {name.removeprefix("loss/"): value for name, value in record.items() if name.startswith("loss/")}
    if sources and record.get("loss") is not None:
        each = ", ".join(f"{name} {value:.4f}" for name, value in sources.items() if value is not None)
        shown[0] += f" ({each})"
    # NaN and inf are null in a record.
    if record.get("loss") is None:
        shown.insert(0, "loss not finite, step skipped")
    # Right behind the loss.
    if metric not in _SHOWN and record.get(metric) is not None:
        shown.insert(1, f"{metric} {record[metric]:.4g}")
    if record.get("skipped"):
        shown.append(f"{record['skipped']} skipped")
    return shown


def duration(seconds: float) -> str:
    """Returns a time for people: "0:02:05", "3 days, 4:00:00"."""
    return str(timedelta(seconds=round(seconds)))


class _Step(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Draws "step 120/4000"."""
        return Text(f"step {task.completed:.0f}/{task.total or 0:.0f}", no_wrap=True)


class _Figures(ProgressColumn):
    """The figures that fit into one line of the terminal, and the time left."""

    max_refresh = 0.25

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        """Draws "loss 6.4491, 3,417 tokens/s, 0:02:05 left"."""
        busy_since = task.fields["busy_since"]  # when work other than training steps started
        # Compiling or evaluating: one word and a clock, in place of figures that do not change.
        if busy_since is not None:
            return Text(f"{task.fields['figures'][0]} {duration(time.monotonic() - busy_since)}", no_wrap=True)
        left = task.fields["seconds_left"]
        end = f"{duration(left)} left" if left else ""
        # A bar that wraps would leave a trail of lines: figures that do not fit are left out, whole.
        room = self._console.width - len(f"step {task.completed:.0f}/{task.total or 0:.0f}") - bar_width(self._console)
        room -= len(end) + 5  # the blanks between columns, and the last column, which stays empty
        shown: list[str] = []
        for figure in task.fields["figures"]:
            if len(", ".join([*shown, figure])) > room:
                break
            shown.append(figure)
        return Text(", ".join([*shown, end] if end else shown), no_wrap=True, overflow="ellipsis")


def bar_width(console: Console) -> int:
    """Returns the columns of the bar itself."""
    return 20 if console.width >= _WIDE else 8


class _NotebookProgress(Progress):
    """The bar as one output of a notebook's cell, which is replaced in place; the file keeps the last one.

    rich's own bar needs ipywidgets, and its outputs cannot be read where no kernel runs.
    """

    def __init__(self, *columns: ProgressColumn, console: Console) -> None:
        # A console that nobody sees: rich draws the bar on it, and its text becomes the output of the cell.
        self._page = Console(file=io.StringIO(), width=console.width, color_system=None, force_jupyter=False)
        super().__init__(*columns, console=self._page, auto_refresh=False)
        self._output: Any = None
        self._stopped = threading.Event()
        # A thread of its own keeps the clock running while the main thread compiles.
        self._clock = threading.Thread(target=self._tick, name="progress bar", daemon=True)

    def _drawn(self) -> dict[str, str]:
        with self._page.capture() as drawn:
            self._page.print(self.get_renderable())
        return {"text/plain": drawn.get().rstrip()}

    def start(self) -> None:
        """Adds the output."""
        from IPython.display import display

        self._output = display(self._drawn(), raw=True, display_id=True)
        self._clock.start()

    def refresh(self) -> None:
        """Draws the bar again, in place."""
        if self._output is not None:
            self._output.update(self._drawn(), raw=True)

    def _tick(self) -> None:
        # Twice a second, as an output of a notebook is sent to the browser each time.
        while not self._stopped.wait(0.5):
            self.refresh()

    def stop(self) -> None:
        """Draws the bar a last time."""
        # The clock first: it would draw over the last state.
        self._stopped.set()
        self._clock.join()
        self.refresh()


class ProgressDisplay:
    """The progress of one run on a console, until `stop`."""

    def __init__(self, console: Console, steps: int, done: int, metric: str = "loss") -> None:
        self._steps, self._metric, self._last_line = steps, metric, 0.0
        self._bar: Progress | None = None
        # rich's number of the bar; there is one.
        self._task = TaskID(0)
        # A notebook's console calls itself a terminal as well (`console`).
        if console.is_terminal:
            columns = (_Step(), BarColumn(bar_width=bar_width(console)), _Figures(console))
            drawn_by = _NotebookProgress if in_notebook() else Progress
            self._bar = drawn_by(*columns, console=console)
            self._task = self._bar.add_task(
                "", total=steps, completed=done, figures=[], seconds_left=None, busy_since=None
            )
            self._bar.start()

    def show(self, record: Mapping[str, Any]) -> None:
        """Shows the newest record; held-out figures always, training steps at most every few seconds."""
        figures, step, trains = figures_of(record, self._metric), record["step"], record["split"] == "train"
        # With a bar, training steps move it, and held-out figures are printed as lines above it.
        if self._bar is not None and trains:
            self._bar.update(self._task, completed=step, figures=figures, seconds_left=record.get("seconds_left"))
        elif not trains or step >= self._steps or time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            # A held-out line does not take the place of one with the speed and the time that is left.
            self._last_line = time.monotonic() if trains else self._last_line
            left = record.get("seconds_left")
            end = [f"{duration(left)} left"] if left else []
            which = "" if trains else " held out"
            logger.info(f"step {step}/{self._steps}{which}: {', '.join(figures + end)}")

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Shows that the run is at other work than training steps, with the time that it takes."""
        # Without a bar there is nothing to animate; a line for each evaluation is printed with its figures.
        if self._bar is None:
            yield
            return
        # The figures from before come back when the other work is done.
        fields = self._bar.tasks[0].fields
        before = dict(fields)
        self._bar.update(self._task, figures=[what], busy_since=time.monotonic(), refresh=True)
        try:
            yield
        finally:
            self._bar.update(self._task, figures=before["figures"], busy_since=None)

    def stop(self) -> None:
        """Lets go of the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
