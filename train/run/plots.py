"""Figures: the look that all of them share, and the loss curve of a run."""

import contextlib
import io
import re
import threading
import time
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from contexture.data.storage import atomic_file
from contexture.train.run.report import Record, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Theme: TypeAlias = Literal["light", "dark"]
PICTURES = (".png", ".svg", ".pdf")
"""The formats of pictures, by suffix."""
COLOURS: dict[Theme, tuple[str, ...]] = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c"),
    "dark": ("#3f8fd2", "#e8702a", "#1fb58a", "#d98fb8", "#f0b429", "#9fd8f7", "#a3a3a3"),
}
"""Okabe and Ito's palette, which colour-blind readers can tell apart; on dark paper the same hues, lighter."""
_INK: dict[Theme, str] = {"light": "#1f1f1f", "dark": "#e6e6e6"}
_PAPER: dict[Theme, str] = {"light": "#fdfdfd", "dark": "#181a1b"}
_GRID: dict[Theme, str] = {"light": "#d9d9d9", "dark": "#3c3f41"}
_FIRST_DRAWING = 10.0
"""Seconds of a run before its figure is drawn for the first time."""
_MOST_POINTS = 2000
"""Points of a curve, about the picture's columns of pixels; more steps are drawn as the span of their losses."""


def new_figure(
    width: float, height: float, rows: int = 1, theme: Theme = "light", columns: int = 1
) -> "tuple[Figure, list[Axes]]":
    """Returns a figure of this size in inches, and its axes, row by row from top to bottom."""
    # Not by pyplot, which keeps all figures in global state: a thread draws here.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=140, layout="constrained", facecolor=_PAPER[theme])
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_facecolor(_PAPER[theme])
        axes.tick_params(colors=_INK[theme])
        axes.grid(color=_GRID[theme], linewidth=0.6)
        # The grid lies below the curves, and only the two axes that carry numbers are drawn.
        axes.set_axisbelow(True)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(_INK[theme])
        for text in (axes.xaxis.label, axes.yaxis.label):
            text.set_color(_INK[theme])
    return figure, list(grid.flat)


def add_title(axes: "Axes", title: str, theme: Theme = "light") -> None:
    """Adds a title above the axes, at the left."""
    # A title wraps at the right edge of the figure. A `$` in it (a folder's name) is a letter and starts no formula.
    axes.set_title(title, fontsize=11, loc="left", color=_INK[theme], wrap=True, parse_math=False)


def add_figure_title(figure: "Figure", title: str, theme: Theme = "light") -> None:
    """Adds a title above all axes, at the left."""
    # At the left edge, where the titles of single axes are.
    figure.suptitle(title, x=0.005, ha="left", fontsize=11, color=_INK[theme], wrap=True, parse_math=False)


def add_legend(axes: "Axes", theme: Theme = "light", **place: Any) -> None:
    """Adds a legend, if anything drawn has a label. place: keyword arguments of matplotlib's `legend`."""
    # matplotlib warns of an empty legend, and warnings are errors in the tests.
    if axes.get_legend_handles_labels()[0]:
        paper = {"facecolor": _PAPER[theme], "edgecolor": "none", "framealpha": 0.85}
        axes.legend(labelcolor=_INK[theme], fontsize=9, **paper, **place)


def add_legend_below(figure: "Figure", theme: Theme = "light") -> None:
    """Adds the legend of all axes below them, where it covers nothing."""
    legends: Any = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles, labels = ([each for legend in legends for each in legend[side]] for side in (0, 1))
    place: Any = {"loc": "outside lower center", "ncols": 4, "frameon": False}
    figure.legend(handles, labels, fontsize=9, labelcolor=_INK[theme], **place)


@contextlib.contextmanager
def unknown_letters_as_boxes() -> Iterator[None]:
    """Draws without a warning for each letter that the font lacks."""
    # The font has no Chinese, for one; a warning for each letter would fill the terminal.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def add_lines_below(figure: "Figure", lines: Sequence[str], theme: Theme = "light") -> None:
    """Adds lines of monospaced text below the axes."""
    ink = _INK[theme]
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", family="monospace", fontsize=8, color=ink)


def save_figure(figure: "Figure", path: Path) -> None:
    """Writes a figure as one of PICTURES, whole or not at all. A light *.svg follows a reader's dark theme."""
    with atomic_file(path) as part:
        if path.suffix == ".svg":
            part.write_text(svg_text(figure), "utf-8")
        elif path.suffix == ".pdf":
            part.write_bytes(_pdf(figure))
        else:
            figure.savefig(part, format="png")


def save_pictures(draw: Callable[[Theme], "Figure"], folder: Path, name: str, theme: Theme = "light") -> list[Path]:
    """Writes the figure that `draw` returns in each of PICTURES' formats, and returns the files.

    theme: the colours of PNG and PDF; an SVG follows its reader's.
    """
    figures: dict[Theme, Figure] = {}
    files = [folder / f"{name}{suffix}" for suffix in PICTURES]
    for file in files:
        # An SVG is drawn light: its style sheet maps each light colour to the dark one.
        colours: Theme = "light" if file.suffix == ".svg" else theme
        figure = figures[colours] = figures.get(colours) or draw(colours)
        save_figure(figure, file)
        figure.set_layout_engine("none")  # it is laid out by now, and a second time would take as long as writing
    return files


def _pdf(figure: "Figure") -> bytes:
    import matplotlib

    drawn = io.BytesIO()
    # TrueType: the default, Type 3, is refused by some publishers' checks, and its text cannot be edited.
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        # No date: the same numbers give the same bytes.
        figure.savefig(drawn, format="pdf", metadata={"CreationDate": None})
    return drawn.getvalue()


def svg_text(figure: "Figure") -> str:
    """Returns a figure as SVG, whose ink, paper, grid and colours turn dark if the reader prefers a dark theme."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    pairs = [(each["light"], each["dark"]) for each in (_INK, _PAPER, _GRID)]
    pairs += zip(COLOURS["light"], COLOURS["dark"], strict=True)
    # matplotlib writes colours as style="fill: #…" and "stroke: #…"; each light one gets a rule of the dark theme.
    rules = [
        f'[style*="{what}: {light}"]{{{what}:{dark}!important}}' for light, dark in pairs for what in ("fill", "stroke")
    ]
    # !important: the colours that matplotlib wrote are in style attributes, which win otherwise.
    style = f"<style>@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"
    return re.sub(r"(<svg[^>]*>)", lambda tag: tag[1] + style, drawn.getvalue(), count=1)


@dataclass(frozen=True)
class Curves:
    """The figures of a run that are drawn, f64. Records themselves take a kilobyte each, and a run may have a million.

    Args:
        losses: (split, name) → [records, 2] of step and nats
        metrics: held-out metric → [records, 2] of step and value
        speeds: tokens/s of training steps
        sampled: whether the training loss is from a sampled softmax
    """

    losses: Mapping[tuple[str, str], np.ndarray]
    metrics: Mapping[str, np.ndarray]
    speeds: np.ndarray
    sampled: bool

    @property
    def name(self) -> str:
        """The loss that is drawn: of the masked tokens where the run predicts some, else the total."""
        return "mlm_loss" if ("train", "mlm_loss") in self.losses else "loss"

    def of(self, split: str, name: str) -> np.ndarray:
        """Returns one loss of a split, [records, 2] of step and nats."""
        return self.losses.get((split, name), np.empty((0, 2)))


def read_curves(records: Iterable[Record], metrics: Sequence[str] = ()) -> Curves:
    """Returns the curves of records, which are read once. metrics: names of held-out metrics to draw."""
    # Flat arrays of doubles, step and value in turn: 16 bytes a point, where Python's floats take 24 each and a list.
    losses: dict[tuple[str, str], array[float]] = {}
    held_out: dict[str, array[float]] = {}
    speeds, sampled = array("d"), False
    for record in records:
        for name in ("loss", "mlm_loss"):
            if record.get(name) is not None:
                losses.setdefault((record["split"], name), array("d")).extend((record["step"], record[name]))
        # A metric that was not finite is None in the file, and leaves a gap.
        for name in metrics if record["split"] == "dev" else ():
            if record.get(name) is not None:
                held_out.setdefault(name, array("d")).extend((record["step"], record[name]))
        if record.get("tokens_per_second") is not None:
            speeds.append(record["tokens_per_second"])
        sampled = sampled or "sampled_perplexity" in record
    # The flat arrays become [records, 2]; metrics keep the order in which they were asked for.
    by_split = {key: np.array(x).reshape(-1, 2) for key, x in losses.items()}
    by_name = {name: np.array(held_out[name]).reshape(-1, 2) for name in metrics if name in held_out}
    return Curves(by_split, by_name, np.array(speeds), sampled)


def loss_figure(curves: Curves, baseline: float | None = None, title: str = "") -> "Figure":
    """Returns a figure of each step's loss, faint, their running mean, the held-out loss, and the baseline.

    A sampled softmax's loss is far below the loss over the whole vocabulary: a run that is trained with the one and
    evaluated with the other gets separate axes.
    """
    name, sampled = curves.name, curves.sampled
    train, held = curves.of("train", name), curves.of("dev", name)
    # Only where both are there: one curve alone needs no second axes.
    apart = sampled and len(train) > 0 and len(held) > 0
    figure, axes = new_figure(8, 6.4 if apart else 4.5, 2 if apart else 1)
    of = {"mlm_loss": "loss of masked tokens (nats)"}.get(name, "loss (nats)")
    # Training on the first axes, held-out loss and baseline on the last; usually they are the same.
    if len(train):
        _draw_steps(axes[0], train)
        axes[0].set_ylabel("sampled loss (nats)" if sampled else of)
    last = axes[-1]
    if len(held):
        # Few evaluations are marked; with many the dots would hide the line.
        mark = "o" if len(held) < 50 else ""
        last.plot(*held.T, marker=mark, color=COLOURS["light"][1], markersize=4, label="held out")
        last.set_ylabel("loss over all words (nats)" if sampled else of)
    if baseline is not None:
        last.axhline(
            baseline, color=COLOURS["light"][6], linestyle="--", linewidth=1, label="unigram baseline, held out"
        )
    last.set_xlabel("step")
    for each in axes:
        add_legend(each)
    if apart:
        # One above the other, a step must be at the same place in both.
        axes[1].set_xlim(axes[0].get_xlim())
    add_title(axes[0], title)
    return figure


def _draw_steps(axes: "Axes", losses: np.ndarray) -> None:
    """Draws [steps, 2] of step and loss: each step faint, and the running mean over a fiftieth of the run."""
    step, loss = losses.T
    window = max(len(loss) // 50, 1)
    total = np.concatenate([[0.0], np.cumsum(loss)])
    # Prefix sums make each window's mean one subtraction. The first windows are shorter: they have what there is.
    first = np.maximum(np.arange(1, len(loss) + 1) - window, 0)
    mean = (total[1:] - total[first]) / (np.arange(1, len(loss) + 1) - first)
    # A million points would make a huge SVG: beyond _MOST_POINTS each stride is drawn as its lowest and highest loss.
    stride = -(-len(loss) // _MOST_POINTS)
    if stride == 1 and window > 1:
        axes.plot(step, loss, color=COLOURS["light"][5], linewidth=0.7, alpha=0.7, label="training, each step")
    elif stride > 1:
        starts = np.arange(0, len(loss), stride)
        low, high = np.minimum.reduceat(loss, starts), np.maximum.reduceat(loss, starts)
        axes.fill_between(
            step[starts], low, high, color=COLOURS["light"][5], alpha=0.5, linewidth=0, label="training, span"
        )
    label = f"training, mean of {window} steps" if window > 1 else "training"
    axes.plot(step[::stride], mean[::stride], color=COLOURS["light"][0], linewidth=1.8, label=label)


class LiveLossFigure:
    """loss.png of a run, redrawn while it trains, in a thread of its own; loss.svg and loss.pdf at the end.

    Drawing reads the whole of metrics.jsonl. It takes a fiftieth of a core at most: the next drawing waits fifty times
    as long as the last one took.
    """

    def __init__(self, folder: Path, baseline: float | None, title: str) -> None:
        self._folder, self._baseline, self._title = folder, baseline, title
        self._thread: threading.Thread | None = None
        # A run of seconds gets its figure at the end only.
        self._next = time.monotonic() + _FIRST_DRAWING

    def update(self) -> None:
        """Draws in the background, if it is time."""
        if time.monotonic() >= self._next and (self._thread is None or not self._thread.is_alive()):
            # A daemon: a run that is ended at once does not wait for a picture.
            self._thread = threading.Thread(target=self._draw_and_wait, name="loss figure", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Waits for the thread."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def draw(self) -> None:
        """Draws now."""
        # The thread may be writing loss.png with fewer steps; it must not finish after this.
        self.close()
        figure = self._figure()
        save_pictures(lambda _: figure, self._folder, "loss")

    def _figure(self) -> "Figure":
        curves = read_curves(read_metrics(self._folder / "metrics.jsonl"))
        return loss_figure(curves, self._baseline, self._title)

    def _draw_and_wait(self) -> None:
        start = time.monotonic()
        # A full disk is reported by what must be written: metrics and checkpoints.
        with contextlib.suppress(OSError):
            save_figure(self._figure(), self._folder / "loss.png")
        self._next = time.monotonic() + 50 * (time.monotonic() - start)
