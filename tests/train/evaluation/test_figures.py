"""`evaluate --figures DIR`: counts that equal an independent count, and pictures of any number and length of labels."""

import csv
import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread

import contexture
from contexture.train.evaluation import figures
from contexture.train.evaluation.figures import (
    MOST_LABELS,
    NO_PREDICTION,
    LabelledPredictions,
    _calibration_figure,
    _confusion_figure,
    _label_figure,
    _most_frequent,
    calibration_bins,
    confusion,
    write_figures,
)
from contexture.train.evaluation.task_metrics import class_table
from tests.helpers.commands import devices, json_of, run_command

PICTURES = {f"{name}{suffix}" for name in ("confusion", "labels", "calibration") for suffix in (".png", ".svg", ".pdf")}


def table(file: Path) -> list[list[str]]:
    with open(file, encoding="utf-8", newline="") as opened:
        return list(csv.reader(opened))


def drawn(labels: int, count: int, seed: int = 0) -> LabelledPredictions:
    rng = np.random.default_rng(seed)
    gold, predicted = rng.integers(0, labels, count), rng.integers(-1, labels, count)
    confidence = rng.integers(0, 21, count) / 20  # among them the edges of the bins
    return LabelledPredictions(
        tuple(f"label {n}" for n in range(labels)), gold.astype(np.int32), predicted.astype(np.int32), confidence
    )


@pytest.fixture(scope="module")
def evaluated(task_run, tmp_path_factory):
    """kind → (what evaluate says, its predictions, the folder of its figures, without the pictures)."""

    def evaluate(kind: str) -> tuple[dict, list[dict], Path]:
        to = tmp_path_factory.mktemp(kind)
        with devices(1), pytest.MonkeyPatch.context() as patch:
            patch.setattr(figures, "save_pictures", lambda *_: None)
            result = json_of("evaluate", task_run(kind), "--to", to, "--figures", to / "figures")
        records = [json.loads(line) for line in Path(result["predictions"]).read_text("utf-8").splitlines()]
        return result, records, to / "figures"

    return evaluate


@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_counts_and_rates_equal_an_independent_count(evaluated, kind):
    result, records, folder = evaluated(kind)
    assert result["figures"] == str(folder)
    if kind == "tag":
        pairs = [pair for r in records for pair in zip(r["labels"], r["predictions"], strict=True)]
        scores = [score for r in records for score in r["scores"]]
    else:
        pairs = [(r["label"], r["prediction"]) for r in records]
        scores = [r["scores"][r["prediction"]] for r in records]
    counts = Counter(pairs)
    head, *rows = table(folder / "confusion.csv")
    assert {row[0] for row in rows} >= {gold for gold, _ in pairs} and head[1:] == [row[0] for row in rows]
    for row in rows:
        assert [int(cell) for cell in row[1:]] == [counts[row[0], name] for name in head[1:]]
    head, *rows = table(folder / "labels.csv")
    assert head == ["label", "precision", "recall", "f1", "support"] and len(rows) == len(result["labels"])
    for name, precision, recall, f1, support in rows:
        hits, gold = counts[name, name], sum(n for (g, _), n in counts.items() if g == name)
        given = sum(n for (_, p), n in counts.items() if p == name)
        assert (float(precision), float(recall)) == pytest.approx((hits / max(given, 1), hits / max(gold, 1)))
        assert float(f1) == pytest.approx(2 * hits / max(given + gold, 1)) and int(support) == gold
    # The expected calibration error, bin by bin.
    error = 0.0
    for low in range(10):
        held = [n for n, score in enumerate(scores) if (low / 10 < score or low == 0) and score <= (low + 1) / 10]
        hits = sum(pairs[n][0] == pairs[n][1] for n in held)
        error += abs(hits - sum(scores[n] for n in held)) / len(scores)
    assert result["calibration"]["error"] == pytest.approx(error, abs=1e-5)
    assert result["calibration"]["bins"] == 10 and result["calibration"]["examples"] == len(scores)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 60), st.integers(0, 9))
def test_every_prediction_is_in_one_cell_and_one_bin(labels, count, seed):
    predictions = drawn(labels, count, seed)
    matrix, names = confusion(predictions)
    assert matrix.sum() == count and matrix.shape == (labels, len(names))
    assert (names[-1] == NO_PREDICTION) == bool((predictions.predicted < 0).any())
    for (row, column), number in np.ndenumerate(matrix):
        wanted = -1 if names[column] == NO_PREDICTION else column
        assert number == sum((predictions.gold == row) & (predictions.predicted == wanted))
    bins = calibration_bins(predictions)
    given_ = predictions.confidence > 0
    if bins is None:
        assert not given_.any()
        return
    hits = (predictions.gold == predictions.predicted) & given_
    assert bins.counts.sum() == given_.sum() and 0.0 <= bins.error <= 1.0
    assert (bins.accuracy * bins.counts).sum() == pytest.approx(hits.sum())
    assert (bins.confidence * bins.counts).sum() == pytest.approx(predictions.confidence.sum())
    assert ((bins.low <= bins.confidence) & (bins.confidence <= bins.low + 0.1 + 1e-9)).all()


def test_calibrated_probabilities_have_no_error():
    gold = np.zeros(100, np.int32)
    predicted = (np.arange(100) >= 75).astype(np.int32)  # three quarters are right
    for confidence, error in ((0.75, 0.0), (1.0, 0.25)):
        bins = calibration_bins(LabelledPredictions(("a", "b"), gold, predicted, np.full(100, confidence)))
        assert bins is not None and bins.error == pytest.approx(error)
    assert calibration_bins(LabelledPredictions(("a", "b"), gold, predicted, np.full(100, np.nan))) is None


def test_rare_labels_stand_together_in_a_picture_and_no_count_is_lost():
    matrix, names = confusion(drawn(100, 5000))
    fewer, kept = _most_frequent(matrix, names)
    assert fewer.sum() == 5000 and fewer.shape == (MOST_LABELS, MOST_LABELS + 1)
    assert kept[MOST_LABELS - 1] == f"{101 - MOST_LABELS} others" and kept[-1] == NO_PREDICTION
    for row, name in enumerate(kept[: MOST_LABELS - 1]):
        assert fewer[row, row] == matrix[names.index(name), names.index(name)]


LONG = ("a label whose name is a whole sentence of its own, which nobody expects", "$x^2$ _{", "好", "<b>&amp;</b>")


MANY = tuple(f"intent {n}" for n in range(150))


def test_pictures_show_the_counts_and_the_rates():
    predictions = drawn(4, 400)
    predictions = LabelledPredictions(LONG, predictions.gold, predictions.predicted, predictions.confidence)
    matrix, names = confusion(predictions)
    axes, bar = cast(Any, _confusion_figure(matrix, names, "a title", "light").axes)
    (mesh,) = axes.collections
    assert np.ma.filled(mesh.get_array(), 0.0) == pytest.approx(matrix / matrix.sum(1, keepdims=True))
    written = {text.get_position(): text.get_text() for text in axes.texts}
    for (row, column), count in np.ndenumerate(matrix):
        assert written[column + 0.5, row + 0.5] == str(count)
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown[1:] == [*LONG[1:]] and [label.get_text() for label in axes.get_xticklabels()] == [*shown, names[-1]]
    first, last = shown[0].split(" … ")
    assert LONG[0].startswith(first) and LONG[0].endswith(last) and len(first + last) > 20
    assert axes.yaxis_inverted() and (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "label")
    assert bar.get_ylabel() == "share of the label"

    rows = class_table(predictions.gold, predictions.predicted, LONG)
    (axes,) = cast(Any, _label_figure(rows, "a title", "dark").axes)
    marks = {str(line.get_label()): [*line.get_data()[0]] for line in axes.lines}
    names_of = {"precision": "precision", "recall": "recall", "F1": "f1"}
    assert marks == {name: [row[field] for row in rows] for name, field in names_of.items()}
    assert [text.get_text() for text in axes.texts] == [str(row["count"]) for row in rows]
    (lines,) = axes.collections
    for n, (low, high) in enumerate(path.vertices for path in lines.get_paths()):
        rates = sorted(rows[n][field] for field in names_of.values())
        assert [*low, *high] == [rates[0], n, rates[-1], n]
    assert axes.get_ylim()[0] > axes.get_ylim()[1] and axes.get_xlabel() == "at the right: how often each occurs"


def test_many_labels_are_drawn_without_counts_and_the_most_frequent_alone():
    predictions = drawn(150, 2000)
    matrix, names = confusion(predictions)
    axes, _ = _confusion_figure(matrix, names, "a title", "light").axes
    assert not axes.texts and len(axes.get_yticklabels()) == MOST_LABELS
    rows = class_table(predictions.gold, predictions.predicted, MANY)
    (axes,) = _label_figure(rows, "a title", "light").axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    fewest = min(row["count"] for row in rows if row["label"] in labels)
    assert len(labels) == MOST_LABELS and labels == [row["label"] for row in rows if row["label"] in labels]
    assert all(row["count"] <= fewest for row in rows if row["label"] not in labels)
    assert axes.get_xlabel().startswith(f"the {MOST_LABELS} most frequent of 150 labels (all: labels.csv); ")


def test_a_calibration_shows_each_bin_at_its_place():
    bins = calibration_bins(drawn(4, 400))
    assert bins is not None
    above, below = cast(Any, _calibration_figure(bins, "a title", "dark").axes)
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in above.patches]
    assert bars == [(low, pytest.approx(0.1), rate) for low, rate in zip(bins.low, bins.accuracy, strict=True)]
    (lines,) = above.collections
    for path, low, mean in zip(lines.get_paths(), bins.low, bins.confidence, strict=True):
        assert path.vertices.tolist() == [[low, mean], [pytest.approx(low + 0.1), mean]]
    assert [bar.get_height() for bar in below.patches] == [count / bins.counts.sum() for count in bins.counts]
    written = [text.get_text() for text in above.texts] + [above.get_title(), above.get_title("left")]
    assert any(f"error {bins.error:.4f} (10 bins, n = {bins.counts.sum()})" in text for text in written)
    assert above.get_xlim() == below.get_xlim() == (0, 1) and above.get_ylabel() == "accuracy"
    labels = {label for axes in (above, below) for label in axes.get_legend_handles_labels()[1]}
    assert {"accuracy", "mean probability", "calibrated"} <= labels


@pytest.mark.parametrize(
    ("theme", "labels"),
    [
        ("dark", ("0", "1")),
        *(pytest.param("light", labels, marks=pytest.mark.long) for labels in (("only",), ("0", "1"), LONG, MANY)),
        *(pytest.param("dark", labels, marks=pytest.mark.long) for labels in (("only",), LONG, MANY)),
    ],
    ids=lambda value: value if isinstance(value, str) else len(value),
)
def test_any_labels_are_drawn(tmp_path, labels, theme):
    predictions = drawn(len(labels), 400)
    predictions = LabelledPredictions(labels, predictions.gold, predictions.predicted, predictions.confidence)
    rows = class_table(predictions.gold, predictions.predicted, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_figures(tmp_path, predictions, rows, "a title", theme)
    assert {file.name for file in tmp_path.iterdir()} == PICTURES | {"confusion.csv", "labels.csv"}
    for name in ("confusion", "labels", "calibration"):
        picture = imread(tmp_path / f"{name}.png")
        assert (picture[0, 0, :3].mean() > 0.5) == (theme == "light") and picture[..., :3].std() > 0.01
        # Nothing is cut off: the outermost pixels are paper.
        edges = [picture[0], picture[-1], picture[:, 0], picture[:, -1]]
        assert all(np.ptp(edge[:, :3], axis=0).max() < 0.02 for edge in edges), name
        assert (tmp_path / f"{name}.svg").read_text("utf-8").count("prefers-color-scheme:dark") == 1
    assert [row[0] for row in table(tmp_path / "labels.csv")[1:]] == [*labels]


def test_what_has_no_labels_has_no_figures(task_run, tiny_run, tmp_path, capsys):
    (tmp_path / "file").touch()
    run, to = task_run("classify"), tmp_path / "to"
    for words, line in (
        ([tiny_run, "--figures", to], "is a pretraining; --figures is for tasks with labels: classify, choice, tag"),
        ([task_run("regress"), "--figures", to], "is regress; --figures is for tasks with labels"),
        ([run, "--figures", tmp_path / "file"], f"--figures {tmp_path / 'file'} is a file; give a folder"),
        ([run, "--figures", tmp_path / "file" / "to"], "cannot be a folder, a file is in the way"),
        ([run, "--figures", to, "--step", "all"], "figures are of one checkpoint; give one --step"),
        ([run, "--figures", to, "--submission", to], "submission= measures nothing; give one of them"),
        ([run, "--figures", to, "--theme", "red"], "light, dark"),
    ):
        code, err = run_command(capsys, "evaluate", *words, "--to", tmp_path / "predictions")
        assert code == 2 and line in err.splitlines()[-1] and "Traceback" not in err, (words, err)
    assert not to.exists()


def test_several_runs_have_a_folder_each(task_run, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(figures, "save_pictures", lambda make, *where: saved.append(where))
    runs = [task_run("classify"), task_run("tag")]
    with devices(1):
        result = contexture.evaluate(runs, to=tmp_path / "to", figures=tmp_path / "figures", theme="dark")
    folders = [tmp_path / "figures" / run.name for run in runs]
    assert [one["figures"] for one in result["runs"]] == [*map(str, folders)]
    names = ("confusion", "labels", "calibration")
    assert saved == [(folder, name, "dark") for folder in folders for name in names]
    assert all((folder / "confusion.csv").is_file() for folder in folders)


@pytest.mark.long
def test_an_evaluation_draws_every_picture(task_run, tmp_path):
    with devices(1):
        contexture.evaluate(task_run("tag"), to=tmp_path / "to", figures=tmp_path / "figures")
    assert PICTURES < {file.name for file in (tmp_path / "figures").iterdir()}
