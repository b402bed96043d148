"""`evaluate RUN RUN …`: one table, a row for each run; what is wrong with one is said before the first is evaluated."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import contexture
from contexture.cli import main as cli
from contexture.cli.evaluation_commands import show_results
from contexture.train.evaluation import evaluate as module
from tests.helpers.commands import json_of, run_command
from tests.helpers.long import long

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture
def runs(task_run, tmp_path) -> list[Path]:
    """Two copies of a fine-tuned run."""
    whole = shutil.ignore_patterns("evaluations")
    return [shutil.copytree(task_run("classify"), tmp_path / name, ignore=whole) for name in ("a", "b")]


def test_several_runs_are_each_as_alone_and_share_a_program(runs, tiny_run, capsys, monkeypatch):
    made = []
    make = module.evaluation_step
    monkeypatch.setattr(module, "evaluation_step", lambda *words: made.append(make(*words)) or made[-1])
    alone = [json_of("evaluate", run) for run in [*runs, tiny_run]]
    assert all("runs" not in one and one["step"] in (40, 60) for one in alone)
    made.clear()
    capsys.readouterr()
    assert cli.main(["evaluate", *map(str, [*runs, tiny_run]), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"runs": alone}
    assert made[0] is made[1] and made[2] is not made[0]
    table = [
        line.split() for line in err.splitlines() if line.split()[:1] in (["run"], [str(runs[0])], [str(tiny_run)])
    ]
    assert table[0][:3] == ["run", "step", "loss"] and [row[1] for row in table[1:]] == ["60", "40"]
    assert float(table[1][2]) == pytest.approx(alone[0]["metrics"]["loss"], rel=1e-3)
    assert contexture.evaluate([*runs, tiny_run]) == {"runs": alone}


def test_a_table_of_runs_ends_with_mean_and_deviation_of_each_metric(capsys):
    runs: Any = [{"run": name, "step": 4, "metrics": {"accuracy": value, "mcc": 1.0}} for name, value in
                 (("a", 0.5), ("b", 0.7), ("c", 0.9))]  # fmt: skip
    runs.append({"run": "d", "error": "no good checkpoint"})
    show_results(runs)
    *_, last = capsys.readouterr().err.splitlines()
    assert last.split("  ")[0] == "mean ± deviation" and "0.7 ± 0.2" in last and "1 ± 0" in last
    runs[0]["checkpoints"] = [dict(runs[0]), dict(runs[1])]
    show_results(runs[:2])
    assert "±" not in capsys.readouterr().err


def test_predictions_lie_in_a_folder_of_each_run(runs, tmp_path):
    result = contexture.evaluate(runs, to=str(tmp_path / "to"))
    places = [Path(one["predictions"]) for one in result["runs"]]
    assert places == [tmp_path / "to" / name / "dev-60" / "predictions.jsonl" for name in ("a", "b")]
    assert all(place.is_file() for place in places)


def _without_checkpoints(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")


def _with_damaged_meta(run: Path) -> None:
    for step in ("50", "60"):
        (run / "checkpoints" / step / "meta" / "metadata").write_text("{}")


@pytest.mark.parametrize(
    ("harm", "words", "code", "line"),
    [
        (shutil.rmtree, [], 2, "b"),
        (_without_checkpoints, [], 2, "b holds no checkpoint yet; train it first"),
        (_with_damaged_meta, [], 1, "no good checkpoint in"),
        (lambda run: None, ["--step", "7"], 2, "holds no checkpoint of step 7"),
        (lambda run: None, ["--split", "test"], 2, "was trained without --task.test"),
        (lambda run: None, ["--watch"], 2, "--watch is for one run; give one, or leave --watch out"),
        (lambda run: None, ["--mesh.distributed"], 2, "--mesh.distributed is for one run"),
    ],
)
def test_a_run_that_fails_is_one_line_before_any_is_evaluated(runs, capsys, monkeypatch, harm, words, code, line):
    harm(runs[1])
    monkeypatch.setattr(module, "evaluate_run", lambda *_: pytest.fail("evaluated"))
    got, err = run_command(capsys, "evaluate", *runs, *words)
    assert got == code and line in err.splitlines()[-1] and "Traceback" not in err
    assert words or str(runs[1]) in err.splitlines()[-1]


@pytest.mark.parametrize("alone", [False, *long(True)])
def test_a_run_that_fails_later_leaves_the_others_their_rows(runs, door, capsys, alone):
    for step in ("50", "60"):
        # The files of numbers: nothing but reading them shows it.
        for file in (runs[0] / "checkpoints" / step / "state").glob("ocdbt.process_0/d/*"):
            file.unlink()
    if alone:
        # In a process of its own, whose event loops leave their failures behind where a user would see them.
        ended = door("evaluate", *runs, "--json")
        code, out, err = ended.returncode, ended.stdout, ended.stderr
    else:
        code = cli.main(["evaluate", *map(str, runs), "--json"])
        out, err = capsys.readouterr()
    assert code == 1, err
    damaged, good = json.loads(out)["runs"]
    assert damaged["run"] == str(runs[0]) and "no good checkpoint" in damaged["error"] and good["metrics"]
    assert f"warning: {runs[0]} was not evaluated: no good checkpoint" in err
    assert "Traceback" not in err


def test_runs_that_would_write_over_each_other_are_refused(runs, capsys, tmp_path):
    code, err = run_command(capsys, "evaluate", runs[0], runs[1], runs[0])
    assert code == 2 and err == f"ConfigError: {runs[0]} is named twice; give every run once"
    other = shutil.copytree(runs[1], tmp_path / "elsewhere" / "a")
    for option in ("--to", "--figures"):
        code, err = run_command(capsys, "evaluate", runs[0], other, option, tmp_path / "to")
        assert code == 2 and f"several runs are called a, a folder in {tmp_path / 'to'}; leave {option} out" in err
    code, err = run_command(capsys, "evaluate")
    assert code == 2 and err == "ConfigError: evaluate needs RUN: contexture evaluate RUN … [options]"


def test_every_checkpoint_of_several_runs_has_a_row(runs, capsys):
    assert cli.main(["evaluate", *map(str, runs), "--step", "all", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [[row["step"] for row in one["checkpoints"]] for one in json.loads(out)["runs"]] == [[50, 60], [50, 60]]
    assert [line.split()[1] for line in err.splitlines() if line.startswith(str(runs[1]))] == ["50", "60"]
