"""`contexture compare`: figures and settings of runs, as a table, a picture and a page."""

import json
import re

import pytest

from contexture.analysis.compare import _draw, _drawn, compare
from contexture.cli import main as cli
from contexture.train.run.plots import COLOURS, read_curves
from contexture.train.run.report import read_metrics
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord, write
from contexture.train.settings.sections import EvaluateConfig, OptimConfig


@pytest.fixture
def runs(tmp_path):
    folders = []
    for name, rate in (("low", 1e-4), ("high <b>", 1e-3)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        write(folder, RunRecord(run=Run(steps=300, optim=OptimConfig(peak_lr=rate)), tokenizer="a", data="b"))
        records = []
        for n in range(1, 301):
            records.append({"step": n, "split": "train", "loss": 9 - n * rate, "tokens_per_second": 100.0 + n})
            if n % 100 == 0:
                records.append({"step": n, "split": "dev", "loss": 8 + abs(n - 200) * rate})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        folders.append(folder)
    return folders


def test_figures_are_those_of_the_records_and_settings_those_that_differ(runs):
    result = compare(runs)
    low = result["runs"][0]
    assert (low["steps"], low["best_held_out_loss"], low["best_step"]) == (300, 8.0, 200)
    assert abs((low["loss"] or 0) - (9 - 299e-4)) < 1e-12 and low["held_out_loss"] == 8 + 100e-4
    assert low["tokens_per_second"] == 250.5
    assert result["differences"] == [{"setting": "optim.peak-lr", "low": "0.0001", "high <b>": "0.001"}]


@pytest.fixture
def tasks(tmp_path):
    """Two classifiers of two labels, one of many labels, which is chosen by its recall, and a regression."""
    folders = []
    for name, metric, figures in (
        ("one", "loss", {"accuracy": [0.5, 0.7, 0.6], "f1": [0.4, 0.8, 0.9], "f1_macro": [0.3, 0.3, 0.3]}),
        ("two", "loss", {"accuracy": [0.6, 0.6, None], "f1": [0.1, 0.1, 0.1], "f1_macro": [0.3, 0.3, 0.3]}),
        ("many", "mse", {"accuracy": [0.1, 0.2, 0.3], "f1_macro": [0.5, 0.5, 0.4], "majority_accuracy": [0.1] * 3}),
        ("number", "mse", {"pearson": [-0.5, 0.1, 0.2], "mse": [3.0, 1.0, 2.0]}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        run = Run(steps=3, evaluate=EvaluateConfig(metric=metric))
        write(folder, RunRecord(run=run, tokenizer="a", data="b"))
        records = []
        for n in range(3):
            records.append({"step": n + 1, "split": "train", "loss": 1.0, "accuracy": 1.0})
            records.append({"step": n + 1, "split": "dev", "loss": 2.0, **{key: x[n] for key, x in figures.items()}})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        folders.append(folder)
    return folders


def test_metrics_of_tasks_are_listed_with_their_best_step(tasks):
    rows = [(row["run"].rpartition("/")[2], *list(row.values())[1:]) for row in compare(tasks)["metrics"]]
    assert rows == [
        ("one", "accuracy", 0.6, 0.7, 2), ("two", "accuracy", 0.6, 0.6, 1), ("many", "accuracy", 0.3, 0.3, 3),
        ("one", "f1", 0.9, 0.9, 3), ("two", "f1", 0.1, 0.1, 1), ("many", "f1_macro", 0.4, 0.5, 1),
        ("number", "pearson", 0.2, 0.2, 3), ("number", "mse", 2.0, 1.0, 2),
    ]  # fmt: skip


def test_metrics_of_tasks_are_drawn_and_stand_on_the_page_and_the_picture(tasks, tmp_path, capsys):
    compare(tasks, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    titles = [f"{metric} of the held-out examples: higher is better" for metric in ("accuracy", "f1", "f1_macro")]
    titles += ["pearson of the held-out examples: higher is better", "mse of the held-out examples: lower is better"]
    assert all(page.count(f"<!-- {title} -->") == 1 for title in titles)
    assert "<h2>Metrics of the held-out examples</h2>" in page and '<td>mse<td class="number">number' in page
    compare(tasks, tmp_path / "a.svg")
    (row,) = re.findall(r"<!-- mse +number .*? -->", (tmp_path / "a.svg").read_text())
    assert row.split()[2:-1] == ["number", "2.0000", "1.0000", "2"]
    assert cli.main(["compare", *map(str, tasks)]) == 0
    assert re.search(r"one +accuracy +0.6 +0.7 +2\n", capsys.readouterr().out)


def test_dark_curves_are_drawn_in_full_colour(runs, tasks):
    """Thin lines of training too: half-transparent blue has a contrast of 2 on dark paper."""
    read = [read_curves(read_metrics(folder / "metrics.jsonl"), ["accuracy"]) for folder in tasks]
    drawn = [_drawn(folder.name, Run(), each) for folder, each in zip(tasks, read, strict=True)]
    lines = [line for axes in _draw(drawn, "dark").axes for line in axes.get_lines()]
    assert len(lines) == 2 * 4 + 3 and {line.get_alpha() for line in lines} == {None}
    assert {line.get_color() for line in lines} == {*COLOURS["dark"][:4]}


def test_a_page_stands_alone_and_shows_names_as_they_are(runs, tmp_path):
    compare(runs, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "high &lt;b&gt;" in page and "<b>" not in re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    assert page.count("<svg") == 1 and "optim.peak-lr" in page and "8.0000" in page
    assert not re.search(r"""(src|href)=["']?https?:""", page) and "<script" not in page


@pytest.mark.parametrize("name", ["a.png", "a.svg", "a.pdf"])
def test_a_picture_holds_curves_and_settings(runs, tmp_path, name):
    compare(runs, tmp_path / name, "dark")
    content = (tmp_path / name).read_bytes()
    start = {"a.png": b"\x89PNG", "a.pdf": b"%PDF", "a.svg": b"<?xml"}[name]
    assert content.startswith(start) and (name != "a.svg" or b"optim.peak-lr" in content)


def test_runs_without_a_step_are_compared(runs, tmp_path):
    (runs[0] / "metrics.jsonl").unlink()
    result = compare(runs, tmp_path / "page.html")
    assert result["runs"][0]["loss"] is None and result["runs"][0]["steps"] == 0


def test_the_command_and_its_mistakes(runs, tmp_path, capsys):
    names = list(map(str, runs))
    assert cli.main(["compare", *names, "--to", str(tmp_path / "a.html")]) == 0
    assert "optim.peak-lr" in capsys.readouterr().out
    for argv, message in (
        (names[:1], "compare needs two runs or more"),
        ([names[0], names[0]], "a run is given twice"),
        ([*names, "--to", "a.gif"], "a.gif: not one of *.html, *.png, *.svg, *.pdf"),
        ([*names, "--to", str(tmp_path / "none" / "a.png")], "its folder is not there"),
        ([names[0], str(tmp_path)], "is not a run"),
    ):
        assert cli.main(["compare", *argv]) == 2
        err = capsys.readouterr().err
        assert message in err and len(err.splitlines()) == 1, err
