"""Figures: what a loss curve shows, axes of their own for losses that do not compare, light and dark."""

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from contexture.train.run import plots
from contexture.train.run.plots import COLOURS, LiveLossFigure, add_title, new_figure, read_curves, svg_text
from tests.helpers.long import long

PNG = b"\x89PNG\r\n"


def _records(steps: int, **figures: float) -> list[dict[str, object]]:
    train = [{"step": n, "split": "train", "loss": 9 - n / steps, **figures} for n in range(1, steps + 1)]
    return [*train, {"step": steps, "split": "dev", "loss": 7.5}]


def draw_loss(records: list[dict[str, object]], path: Path, baseline: float | None = None, title: str = "") -> None:
    plots.save_figure(plots.loss_figure(read_curves(records), baseline, title), path)


def _texts(svg: Path) -> list[str]:
    """matplotlib writes each text as a comment before its glyphs."""
    return re.findall(r"<!-- (.*?) -->", svg.read_text())


@pytest.mark.parametrize("steps", [1, 500, *long(7, 5000)])
def test_a_loss_curve_has_title_units_and_legend(tmp_path, steps):
    draw_loss(_records(steps), tmp_path / "loss.svg", 8.0, "mine: gpt, pretraining")
    texts = _texts(tmp_path / "loss.svg")
    for text in ("mine: gpt, pretraining", "loss (nats)", "step", "held out", "unigram baseline, held out"):
        assert texts.count(text) == 1, texts
    draw_loss(_records(steps), tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)


def test_sampled_and_full_losses_have_axes_of_their_own(tmp_path):
    draw_loss(_records(90, sampled_perplexity=50.0), tmp_path / "loss.svg")
    assert {"sampled loss (nats)", "loss over all words (nats)"} <= set(_texts(tmp_path / "loss.svg"))
    draw_loss(_records(90, full_perplexity=50.0), tmp_path / "loss.svg")
    assert _texts(tmp_path / "loss.svg").count("loss (nats)") == 1


def test_steps_without_a_loss_and_runs_without_steps_are_drawn(tmp_path):
    draw_loss([{"step": 1, "split": "train", "loss": None}], tmp_path / "loss.png")
    draw_loss([], tmp_path / "loss.png", 3.0)


def test_an_svg_turns_dark_with_its_reader():
    figure, (axes,) = new_figure(4, 3)
    axes.plot(np.arange(3))
    add_title(axes, "title")
    text = svg_text(figure)
    style = text[text.index("@media (prefers-color-scheme:dark)") : text.index("</style>")]
    rules = re.findall(r'\[style\*="(\w+): (#\w+)"\]', style)
    assert len(rules) == 2 * (3 + len(COLOURS["light"]))
    # Ink, paper and grid are all there to be replaced, and no text is left in another colour.
    for what, colour in (("stroke", "#1f1f1f"), ("fill", "#1f1f1f"), ("fill", "#fdfdfd"), ("stroke", "#d9d9d9")):
        assert (what, colour) in rules and f"{what}: {colour}" in text.replace(style, "")
    assert not re.search(r"fill: #(000000|000)\b", text)


def _luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2): 0.2126 R + 0.7152 G + 0.0722 B of linear red, green and blue."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(factor * x for factor, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_of_the_dark_cycle_is_readable_on_dark_paper():
    assert abs(_contrast("#000000", "#ffffff") - 21) < 1e-9 and abs(_contrast("#767676", "#ffffff") - 4.54) < 0.01
    figure, _ = new_figure(4, 3, theme="dark")
    paper = to_hex(figure.get_facecolor())
    assert {colour: contrast for colour in COLOURS["dark"] if (contrast := _contrast(colour, paper)) < 4.5} == {}
    # A dark SVG must not be painted over by the rules that make a light one dark.
    assert not set(COLOURS["dark"]) & set(COLOURS["light"])


def test_a_live_figure_is_drawn_and_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 2.0}\n')
    figure = LiveLossFigure(tmp_path, None, "run")
    figure.update()  # a run of seconds is drawn at its end
    figure.close()
    assert not (tmp_path / "loss.png").exists()
    monkeypatch.setattr(plots, "_FIRST_DRAWING", 0.0)
    figure = LiveLossFigure(tmp_path, None, "run")
    figure.update()
    figure.close()
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)
    (tmp_path / "loss.png").unlink()
    figure.update()  # too soon
    figure.close()
    assert not (tmp_path / "loss.png").exists()
    figure.draw()
    starts = {"png": PNG, "svg": b"<?xml", "pdf": b"%PDF"}
    assert all((tmp_path / f"loss.{kind}").read_bytes().startswith(start) for kind, start in starts.items())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plots, "save_figure", full)
    again = LiveLossFigure(tmp_path, None, "run")
    again.update()
    again.close()


def test_the_span_of_many_steps_holds_the_first_and_every_extreme():
    steps = np.arange(1, 5001)
    losses = np.full(5000, 2.0)
    losses[[0, 2500, 4999]] = 9.0, 1.0, 7.0
    _, (axes,) = new_figure(4, 3)
    plots._draw_steps(axes, np.stack([steps, losses], 1))
    (span,) = axes.collections
    x, y = np.asarray(span.get_paths()[0].vertices).T
    assert (x.min(), y.min(), y.max()) == (1, 1.0, 9.0) and y[np.argmax(x)] in (2.0, 7.0)
    assert len(np.unique(x)) == 5000 // 3 + 1  # at most 2,000 places
