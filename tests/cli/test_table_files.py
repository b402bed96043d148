"""Tables as files: what a reader of each format finds in them."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from contexture.cli import main as cli
from contexture.cli.grid_options import table_rows
from contexture.data.errors import DataError
from contexture.table_files import PlusMinus, check_table, write_table
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord, write
from contexture.train.settings.sections import OptimConfig
from tests.helpers.commands import json_of, run_command
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")

ROWS = [
    {"run": "a_b & 100%", "f1": 0.123456, "loss": -1.5, "n": 12},
    {"run": "mean", "f1": PlusMinus(0.25, 0.0123), "loss": 1e-7, "n": None},
    {"run": "x|y\n<z>", "f1": PlusMinus(0.5, None), "best": "yes"},
]


def test_latex_escapes_special_characters_and_sets_numbers_as_mathematics(tmp_path):
    write_table(tmp_path / "t.tex", ROWS)
    lines = (tmp_path / "t.tex").read_text("utf-8").splitlines()
    assert lines[1:5] == [r"\begin{tabular}{lrrrl}", r"\toprule", r"run & f1 & loss & n & best \\", r"\midrule"]
    assert lines[5] == r"a\_b \& 100\% & $0.1235$ & $-1.5$ & $12$ & -- \\"
    assert lines[6] == r"mean & $0.25 \pm 0.012$ & $1 \cdot 10^{-7}$ & -- & -- \\"
    assert lines[7] == r"x\textbar{}y \textless{}z\textgreater{} & $0.5$ & -- & -- & yes \\"
    assert lines[8:] == [r"\bottomrule", r"\end{tabular}"]


@pytest.mark.parametrize("sign", list(r"\&%$#_{}~^"))
def test_no_special_character_is_left_bare(tmp_path, sign):
    write_table(tmp_path / "t.tex", [{"a": f"x{sign}y"}])
    (row,) = [line for line in (tmp_path / "t.tex").read_text().splitlines() if line.startswith("x")]
    text = row.removesuffix(r" \\")
    assert re.fullmatch(r"x(\\[&%$#_{}]|\\text[a-z]+\{\})y", text), text


def test_csv_has_whole_numbers_and_deviations_in_columns_of_their_own(tmp_path):
    write_table(tmp_path / "t.csv", ROWS)
    with open(tmp_path / "t.csv", encoding="utf-8", newline="") as file:
        assert "\r" not in file.read()
        file.seek(0)
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["run", "f1", "f1 deviation", "loss", "n", "best"]
    assert [float(row["f1"]) for row in rows] == [0.123456, 0.25, 0.5]
    assert [row["f1 deviation"] for row in rows] == ["", "0.0123", ""]
    assert rows[2]["run"] == "x|y\n<z>" and rows[1]["loss"] == "1e-07" and rows[2]["n"] == ""


def test_markdown_has_a_line_for_each_row(tmp_path):
    write_table(tmp_path / "t.md", ROWS)
    assert (tmp_path / "t.md").read_text("utf-8").splitlines() == [
        "| run | f1 | loss | n | best |",
        "|---|--:|--:|--:|---|",
        r"| a\_b & 100% | 0.1235 | -1.5 | 12 | – |",
        "| mean | 0.25 ± 0.012 | 1e-07 | – | – |",
        r"| x\|y \<z\> | 0.5 | – | – | yes |",
    ]


@pytest.mark.parametrize(
    ("name", "line"), [("t.txt", "a table ends in .tex, .csv or .md"), ("no/t.md", "its folder is not there")]
)
def test_a_place_that_holds_no_table_is_refused(tmp_path, name, line):
    with pytest.raises(DataError, match=f"--table .*{name}: {line}"):
        check_table(tmp_path / name)


def _rows(file: Path) -> list[dict[str, str]]:
    with open(file, encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_compare_writes_figures_beside_the_settings_that_differ(tmp_path):
    for name, rate in (("low", 1e-4), ("high", 1e-3)):
        run = Run(steps=9 if name == "low" else 8, optim=OptimConfig(peak_lr=rate))
        (tmp_path / name).mkdir()
        write(tmp_path / name, RunRecord(run=run, tokenizer="a", data="b"))
        lines = [f'{{"step": {n}, "split": "dev", "loss": {rate}, "accuracy": {0.9 - 0.1 * n}}}\n' for n in (1, 9)]
        (tmp_path / name / "metrics.jsonl").write_text("".join(lines))
    compared = json_of("compare", tmp_path / "low", tmp_path / "high", "--table", tmp_path / "t.csv")
    assert compared["table"] == str(tmp_path / "t.csv") and "to" not in compared
    rows = _rows(tmp_path / "t.csv")
    assert [name for name in rows[0] if "run" in name] == [next(iter(rows[0]))] == ["run"]
    assert [row["optim.peak-lr"] for row in rows] == ["0.0001", "0.001"]
    # A setting of a figure's name is a column of its own.
    assert [row["steps (setting)"] for row in rows] == ["9", "8"] and "steps" in rows[0]
    assert [float(row["held_out_loss"]) for row in rows] == [1e-4, 1e-3]
    assert [row["run"] for row in rows] == [str(tmp_path / "low"), str(tmp_path / "high")]
    assert [(float(row["accuracy"]), float(row["best accuracy"])) for row in rows] == [(0.0, 0.8)] * 2


def test_a_table_does_not_replace_examples_that_are_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("dev.csv").write_text("text,label\nthe old cat,animal\na queen,person\n")
    shutil.copytree(GOLDEN / "bert_classify", "run")
    shutil.copytree(GOLDEN / "bert", "bert")
    tree = json.loads(Path("run/run.json").read_text())
    tree["config"]["task"] |= {"dev": [str(tmp_path / "dev.csv")], "dev_fraction": 0.0}
    Path("run/run.json").write_text(json.dumps(tree))
    grid = "finetune bert --task.kind classify --task.train dev.csv --seeds 1 --dir new"
    for words in ("evaluate run --table dev.csv", f"{grid} --table dev.csv --task.dev-fraction 0.5"):
        before = Path("dev.csv").read_bytes()
        assert cli.main(list(map(str, words.split()))) == 2
        assert "--table dev.csv is the input itself" in capsys.readouterr().err
        assert Path("dev.csv").read_bytes() == before


def test_a_name_in_brackets_is_no_argument_of_the_row_before(tmp_path):
    write_table(tmp_path / "t.tex", [{"run": "a ± b", "loss": 1.0}, {"run": "[b]", "loss": 2.0}])
    assert "\n{}[b] &" in (text := (tmp_path / "t.tex").read_text()) and "\na $\\pm$ b &" in text


def test_layers_have_a_column_for_each_weight(tmp_path):
    files = {"table": tmp_path / "t.csv", "to": tmp_path / "l.svg"}
    result = json_of("layers", GOLDEN / "elmo_tag", *(x for n, f in files.items() for x in (f"--{n}", f)))
    assert (result["table"], result["figure"]) == (str(files["table"]), str(files["to"]))
    for row, mix in zip(_rows(tmp_path / "t.csv"), result["mixes"], strict=True):
        assert [float(row[name]) for name in ("words", "layer 1", "layer 2")] == mix["weights"]


def test_an_evaluation_of_several_runs_ends_with_their_mean(tmp_path):
    (tmp_path / "dev.tsv").write_text("text\tlabel\nthe old cat\tanimal\na queen\tperson\n")
    runs = [shutil.copytree(GOLDEN / "bert_classify", tmp_path / name) for name in "ab"]
    result = json_of("evaluate", *runs, "--dev", tmp_path / "dev.tsv", "--table", tmp_path / "t.csv")
    rows = _rows(tmp_path / "t.csv")
    losses = [run["metrics"]["loss"] for run in result["runs"]]
    assert result["table"] == str(tmp_path / "t.csv") and [row["run"] for row in rows[:2]] == [str(run) for run in runs]
    assert [float(row["loss"]) for row in rows] == [*losses, sum(losses) / 2]
    assert rows[-1]["run"] == "mean ± deviation" and float(rows[-1]["loss deviation"]) == 0


def test_zero_shot_figures_have_a_row_for_each_group(tmp_path):
    (tmp_path / "c.tsv").write_text("text\tchoice1\tchoice2\tlabel\tsex\nthe\tcat\tdog\t0\tf\na\tcat\tdog\t1\tm\n")
    options = ("--task", "choice", "--input", tmp_path / "c.tsv", "--group", "sex", "--table", tmp_path / "t.csv")
    result = json_of("zeroshot", GOLDEN / "gpt", *options)
    rows = _rows(tmp_path / "t.csv")
    assert [row["group"] for row in rows] == ["f", "m", "all"]
    assert [float(row["accuracy"]) for row in rows] == [
        *(result["groups"][name]["accuracy"] for name in "fm"), result["accuracy"]
    ]  # fmt: skip


def test_a_grid_has_every_metric_of_its_settings():
    def setting(rate: float, mean: float) -> Any:
        runs = [{"run": "d/1", "seed": 1, "step": 1}, {"run": "d/2", "seed": 2, "diverged": "not finite"}]
        return {"setting": {"optim.peak_lr": rate}, "dev": {"f1": {"mean": mean, "deviation": 0.5}}, "runs": runs}

    settings = [setting(1e-3, 0.25), setting(2e-3, 0.75)]
    test = {"f1": {"mean": 0.5, "deviation": None}}
    result: Any = {"grid": "d", "metric": "f1", "settings": settings, "best": settings[1], "test": test}
    assert table_rows(result) == [
        {"optim.peak-lr": "0.001", "seeds": 2, "diverged": 1, "f1": PlusMinus(0.25, 0.5)},
        {"optim.peak-lr": "0.002", "seeds": 2, "diverged": 1, "f1": PlusMinus(0.75, 0.5), "best": "yes",
         "test f1": PlusMinus(0.5, None)},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["compare", "a", "b", "--table", "t.txt"], "--table t.txt: a table ends in .tex, .csv or .md"),
        (["layers", "a", "--table", "t.txt"], "--table t.txt: a table ends in .tex, .csv or .md"),
        (["evaluate", "a", "--table", "t.txt"], "--table t.txt: a table ends in .tex, .csv or .md"),
        (["zeroshot", "a", "--task", "cbt", "--input", "a.txt", "--table", "t.txt"], "--table t.txt: a table ends in"),
        (["evaluate", "a", "--submission", "s", "--table", "t.md"], "table= is for what is measured; leave --"),
        (["evaluate", "a", "--dev", "t.csv", "--table", "t.csv"], "--table t.csv is the input itself"),
    ],
)  # fmt: skip
def test_a_table_without_a_place_is_refused_before_any_work(capsys, words, line):
    code, err = run_command(capsys, *words)
    assert code == 2 and line in err and len(err.splitlines()) == 1, err


def test_a_fine_tuning_of_one_run_has_no_table(tmp_path, capsys):
    (tmp_path / "train.tsv").write_text("text\tlabel\na film\tgood\na bore\tbad\n")
    words = ["--task.kind", "classify", "--task.train", tmp_path / "train.tsv", "--dir", tmp_path / "run"]
    code, err = run_command(capsys, "finetune", GOLDEN / "bert", *words, "--table", "t.md")
    assert code == 2 and "--table is for several runs; give --grid or --seeds too, or leave --table out" in err, err
