"""The figures of probes: their scales, the names of their axes, and titles of any length."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text

from contexture.analysis.probing.probe_figure import draw_probes, steps_figure, tasks_figure
from contexture.analysis.probing.probe_rows import ProbeRow
from contexture.train.run.plots import COLOURS
from tests.helpers.parity_rule import assert_close


def mixed(run: str, step: int = 100, weights=(0.32, 0.32, 0.36), differentials=(0.3, 0.1)) -> ProbeRow:
    return {
        "run": run, "step": step, "task": "pos", "probes": "cumulative", "layers": [0, 1, 2], "f1": 0.7,
        "lexical_f1": 0.3, "selectivity": 0.2, "weights": list(weights), "centre_of_gravity": 1.04,
        "differentials": list(differentials), "expected_layer": 1.25,
    }  # fmt: skip


def alone(run: str, step: int = 100, f1=(0.82, 0.85, 0.89), selectivity=(0.1, -0.2, 0.3)) -> ProbeRow:
    return {
        "run": run, "step": step, "task": "pos", "probes": "each", "layers": [0, 1, 2], "f1": 0.89, "best_layer": 2,
        "layer_f1": list(f1), "layer_selectivity": list(selectivity),
    }  # fmt: skip


def maps(figure: Figure) -> list[AxesImage]:
    return [image for axes in figure.axes for image in axes.get_images()]


def names(figure: Figure) -> tuple[str, list[str]]:
    axes = figure.axes[0]
    return axes.get_xlabel(), [label.get_text() for label in axes.get_xticklabels()]


def test_steps_stand_on_an_axis_of_steps_and_runs_on_one_of_runs():
    one = [alone("runs/gpt", step) for step in (100, 2000)]
    assert names(steps_figure({("pos", "each"): one})) == ("step of training", ["100", "2,000"])
    several = [alone("runs/gpt", 2000), alone("runs/elmo", 100)]
    assert names(steps_figure({("pos", "each"): several})) == (
        "run, and its step of training", ["elmo\nstep 100", "gpt\nstep 2,000"],
    )  # fmt: skip


def test_titles_name_the_run():
    one = steps_figure({("pos", "each"): [alone("runs/gpt", step) for step in (100, 2000)]})
    assert one.axes[0].get_title(loc="left") == "pos, gpt: F1 of each layer alone"
    several = steps_figure({("pos", "each"): [alone("runs/gpt"), alone("runs/elmo")]})
    assert several.axes[0].get_title(loc="left") == "pos: F1 of each layer alone", "the columns name the runs"
    (axes,) = tasks_figure([alone("runs/gpt", 2000)]).axes
    assert axes.get_title(loc="left").startswith("pos, gpt at step 2,000: F1 0.890, best layer 2")


def test_a_title_has_the_mean_of_all_seeds_as_tables_have_it():
    row: ProbeRow = {**mixed("runs/gpt"), "seeds": 2, "over_seeds": {"f1": {"mean": 0.24, "deviation": 0.037}}}
    (axes,) = tasks_figure([row]).axes
    title = axes.get_title(loc="left")
    assert "F1 0.240 ± 0.037, words alone 0.300" in title and title.endswith("bars of the first of 2 seeds")


def test_equal_differences_of_a_map_are_equal_differences_of_colour():
    """The lightness of cividis rises about linearly: 0.32 and 0.36 differ by a tenth of the scale."""
    (image,) = maps(steps_figure({("pos", "cumulative"): [mixed("a"), mixed("b")]}))
    assert image.get_clim() == (0.0, 0.36)
    (image,) = maps(steps_figure({("pos", "each"): [alone("a"), alone("b")]}))
    assert image.get_clim() == (0.0, 1.0)
    light = np.array(image.to_rgba(np.array([0.82, 0.86, 0.0, 1.0])))[:, :3] @ (0.2126, 0.7152, 0.0722)
    assert light[1] - light[0] < 0.1 * (light[3] - light[2])
    labels = [axes.get_ylabel() for axes in image.figure.axes]  # pyright: ignore[reportOptionalMemberAccess]
    assert labels == ["layer", "F1, from 0 to 1"]


def test_a_map_has_each_layers_figure_at_its_place_and_a_gap_between_runs():
    rows = [alone("a"), alone("b", f1=(0.1, 0.25, 0.375)), alone("b", 200, f1=(0.6, 0.5, 0.4))]
    axes = steps_figure({("pos", "each"): rows}).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["words", "1", "2"]
    columns = [row["layer_f1"] for row in rows]
    written = {text.get_position(): text.get_text() for text in axes.texts}
    expected = {(x, y): f"{value:.2f}" for x, column in enumerate(columns) for y, value in enumerate(column)}
    assert {place: written.get(place) for place in expected} == expected
    assert_close(np.asarray(axes.get_images()[0].get_array()), np.array(columns).T, atol=1e-12)
    assert [np.asarray(line.get_xdata())[0] for line in axes.lines] == [0.5]


def test_all_panels_of_one_figure_have_one_scale():
    rows = [mixed("a", differentials=(0.0, 0.0)), mixed("b"), mixed("c", differentials=(0.5, -0.1))]
    limits = [axes.get_ylim() for axes in tasks_figure(rows).axes]
    assert len(set(limits)) == 1
    # The third run's layer 1 adds 0.5 of a gain of 0.4, and its layer 2 takes 0.1 away.
    assert_close(np.array(limits[0]), np.array([-0.25, 1.05 * 1.25]), atol=1e-12)
    limits = [axes.get_ylim() for axes in tasks_figure([alone("a"), alone("b", selectivity=(0.0, 0.0, 0.0))]).axes]
    assert limits == [(-0.2, 1.0)] * 2


@pytest.mark.parametrize("name", ["elmo", "a-run-with-a-rather-long-name-of-its-own $x$ and $y"])
def test_no_title_is_cut_at_the_right_edge(name):
    figure = tasks_figure([mixed(f"runs/{name}", 1_000_000), mixed("runs/b")])
    figure.draw_without_rendering()
    for axes in figure.axes:
        (title,) = (text for text in axes.findobj(Text) if text.get_text() == axes.get_title(loc="left"))
        box = title.get_window_extent()
        assert 0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 and box.y0 > axes.bbox.y1


def test_a_dark_picture_has_a_light_svg_that_follows_its_reader(tmp_path):
    files = draw_probes([mixed("a"), mixed("b")], tmp_path, "dark")
    assert [file.name for file in files] == [
        f"{name}.{kind}" for name in ("probe", "steps") for kind in ("png", "svg", "pdf")
    ]
    text = files[1].read_text()
    drawn = re.sub(r"<style>.*?</style>", "", text)
    assert COLOURS["light"][0] in drawn and COLOURS["dark"][0] not in drawn and "selectivity 0.200" in text
