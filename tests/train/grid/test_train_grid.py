"""A grid: each run is the one trained alone, the table is that of their figures, only what is missing is trained."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import contexture
from contexture.cli import main as cli
from contexture.models.shapes import by_path
from contexture.train.run.report import read_metrics
from tests.conftest import ROOT
from tests.helpers.commands import json_of, run_command
from tests.helpers.parity_rule import assert_differs
from tests.helpers.random_runs import first_states, random_training, zeros
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
BERT = GOLDEN / "bert"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a task in the words of the golden run: 32 examples to learn from, 12 held out, 10 of the test."""
    folder = tmp_path_factory.mktemp("task")
    texts = [f"the {who} sees the {what}" for who in ("cat", "queen", "moon") for what in ("river", "boat", "old man")]
    for name, count in (("train", 32), ("dev", 12), ("test", 10)):
        rows = [f"{texts[n * 5 % 9]}\t{'ab'[n % 9 % 2]}\n" for n in range(count)]
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "".join(rows))
    named = [f"--task.{name}={folder / name}.tsv" for name in ("train", "dev", "test")]
    return ["--task.kind", "classify", *named, "--data.batch", "8", "--log.no-tensorboard", "--steps", "3"]


@pytest.fixture(scope="module")
def words(files: list[str]) -> list[str]:
    """A grid of two rates and two seeds, without its --dir."""
    return ["finetune", str(BERT), *files, "--grid", "lr=1e-3,2e-2", "--seeds", "2"]


@pytest.fixture(scope="module")
def grid(words, tmp_path_factory) -> Path:
    """That grid, as its training leaves it, with numbers that are drawn, and what it printed beside it."""
    with random_training(3, evaluates=True):
        return done_grid(tmp_path_factory.mktemp("grids") / "whole", words)


@pytest.fixture(scope="module")
def trained_grid(words, tmp_path_factory) -> Path:
    """That grid, trained without interruption."""
    return done_grid(tmp_path_factory.mktemp("grids") / "trained", words)


def done_grid(folder: Path, words: list[str]) -> Path:
    out, err = folder.with_suffix(".out"), folder.with_suffix(".err")
    with pytest.MonkeyPatch.context() as patch, out.open("w") as stdout, err.open("w") as stderr:
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "stderr", stderr)
        assert cli.main([*words, "--dir", str(folder)]) == 0
    return folder


def results_of(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text("utf-8"))


def figures(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl without what a clock says."""
    clock = ("seconds", "tokens_per_second", "data_wait", "mfu", "seconds_left")
    records = [r for r in read_metrics(folder / "metrics.jsonl") if r["split"] != "goodput"]
    return [{k: v for k, v in r.items() if k not in clock} for r in records]


def parameters(folder: Path) -> dict[str, np.ndarray]:
    return {path: np.asarray(x) for path, x in by_path(contexture.load(folder)[1]).items()}


@pytest.mark.long
def test_a_run_of_a_grid_is_the_run_trained_alone_to_the_bit(trained_grid, files, tmp_path):
    """Here the last one, whose step was compiled for the first; dropout on."""
    alone = ["finetune", str(BERT), *files, "--lr", "2e-2", "--seed", "1", "--dir", str(tmp_path / "alone")]
    assert cli.main(alone) == 0
    grid = trained_grid
    run = grid / "peak-lr=0.02-seed1"
    assert figures(run) == figures(tmp_path / "alone")
    mine, other = parameters(run), parameters(tmp_path / "alone")
    assert mine.keys() == other.keys() and all(np.array_equal(mine[path], other[path]) for path in mine)
    configs = [json.loads((folder / "run.json").read_text())["config"] for folder in (run, tmp_path / "alone")]
    assert {**configs[0], "dir": ""} == {**configs[1], "dir": ""}
    assert_differs(
        mine["heads_classify/kernel"], parameters(grid / "peak-lr=0.02-seed0")["heads_classify/kernel"], 1e-3
    )
    assert_differs(
        mine["heads_classify/kernel"], parameters(grid / "peak-lr=0.001-seed1")["heads_classify/kernel"], 1e-3
    )


@pytest.mark.long
@pytest.mark.usefixtures("own_programs")
def test_rates_and_seeds_share_one_compiled_step(files, tmp_path, capsys):
    words = ["finetune", BERT, *files, "--grid", "lr=1e-3,2e-2", "--seeds", "2"]
    with first_states(zeros):
        code, printed = run_command(capsys, *words, "--dir", tmp_path / "grid")
    assert code == 0 and printed.count("compiling the training step") == 1
    assert [line.split(":")[0] for line in printed.splitlines() if line.startswith("run ")] == [
        f"run {n} of 4" for n in (1, 2, 3, 4)
    ]
    kernels = [
        parameters(tmp_path / "grid" / f"peak-lr={name}")["heads_classify/kernel"]
        for name in ("0.02-seed1", "0.02-seed0", "0.001-seed1")
    ]
    assert_differs(kernels[0], kernels[1], 1e-3)
    assert_differs(kernels[0], kernels[2], 1e-3)


def test_the_table_is_that_of_the_runs_own_figures(grid):
    """Mean and deviation of the last held-out figures; the best by its mean; test figures of that one alone."""
    result, means = results_of(grid), {}
    for setting, rate in zip(result["settings"], (1e-3, 2e-2), strict=True):
        assert setting["setting"] == {"optim.peak_lr": rate}
        runs = [grid / f"peak-lr={rate}-seed{seed}" for seed in (0, 1)]
        assert [(run["run"], run["seed"], run["step"]) for run in setting["runs"]] == [
            (str(run), seed, 3) for seed, run in enumerate(runs)
        ]
        for metric in ("loss", "accuracy"):
            last = [[r for r in figures(run) if r["split"] == "dev"][-1][metric] for run in runs]
            assert setting["dev"][metric]["mean"] == pytest.approx(np.mean(last), rel=1e-12)
            assert setting["dev"][metric]["deviation"] == pytest.approx(np.std(last, ddof=1), rel=1e-9)
        means[rate] = setting["dev"]["loss"]["mean"]
    best, other = sorted(means, key=lambda rate: means[rate])
    assert result["metric"] == "loss" and result["best"]["setting"] == {"optim.peak_lr": best}
    test = [contexture.evaluate(run["run"], split="test", step=3)["metrics"]["loss"] for run in result["best"]["runs"]]
    assert result["test"]["loss"] == {"mean": np.mean(test), "deviation": pytest.approx(np.std(test, ddof=1), rel=1e-9)}
    assert not list(grid.glob(f"peak-lr={other}-*/evaluations"))
    printed = grid.with_suffix(".out").read_text()
    row = next(line.split() for line in printed.splitlines() if line.split()[0] == str(best))
    loss = result["best"]["dev"]["loss"]
    assert row[:4] == [str(best), f"{loss['mean']:.4f}", "±", f"{loss['deviation']:.4f}"] and row[-1] == "←"
    assert printed.count("←") == 1 and f"--optim.peak-lr {best}" in printed and "test, of the best alone" in printed


def test_a_second_start_trains_nothing_and_imports_no_jax(grid, words):
    before = {file: file.stat().st_mtime_ns for file in grid.rglob("*") if file.is_file() and file.name != "lock"}
    program = (
        "import sys, contexture.cli.main as cli\n"
        "code = cli.main(sys.argv[1:])\n"
        "sys.exit(code or 'jax' in sys.modules)\n"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program, *words, "--dir", str(grid)], capture_output=True, text=True,
                          cwd=ROOT, env=os.environ)  # fmt: skip
    assert done.returncode == 0 and done.stdout == grid.with_suffix(".out").read_text() and not done.stderr, done.stderr
    assert time.monotonic() - start < 10
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_only_what_is_missing_is_trained_and_the_table_is_the_same(grid, words, tmp_path, capsys):
    """One run is not there, and of another the last checkpoint is lost."""
    folder = tmp_path / "grid"
    shutil.copytree(grid, folder)
    shutil.rmtree(folder / "peak-lr=0.001-seed1")
    shutil.rmtree(folder / "peak-lr=0.02-seed0" / "checkpoints" / "3")
    with random_training(3, evaluates=True):
        code, err = run_command(capsys, *words, "--dir", folder)
    assert code == 0 and "2 of 4 runs are to be trained" in err
    assert "run 2 of 4" in err and "run 3 of 4" in err and "run 1 of 4" not in err
    moved = (folder / "results.json").read_text().replace(str(folder), str(grid))
    assert moved == (grid / "results.json").read_text()


def test_a_run_of_other_settings_does_not_count_for_the_grid(grid, words, tmp_path, capsys):
    """It was trained further by itself; or it has the name of a setting that it was not trained with."""
    copied = tmp_path / "grid"
    shutil.copytree(grid, copied)
    shutil.copytree(copied / "peak-lr=0.001-seed0", copied / "peak-lr=0.005-seed0")
    more = [*words[:-3], "lr=1e-3,2e-2,5e-3", *words[-2:]]
    assert cli.main([*more, "--dir", str(copied)]) == 2
    line = "peak-lr=0.005-seed0 holds a run with --optim.peak-lr 0.001, which has --optim.peak-lr 0.005 in this grid"
    assert line in capsys.readouterr().err
    shutil.rmtree(copied / "peak-lr=0.005-seed0")
    file = copied / "peak-lr=0.001-seed1" / "run.json"
    file.write_text(file.read_text().replace('"steps": 3', '"steps": 6'))
    assert cli.main([*words, "--dir", str(copied)]) == 2
    assert "peak-lr=0.001-seed1 holds a run with --steps 6, which has --steps 3 in" in capsys.readouterr().err
    assert (copied / "results.json").read_bytes() == (grid / "results.json").read_bytes()


def test_figures_that_a_run_has_lost_are_measured_again(grid, words, tmp_path, capsys):
    """A mean without them could choose another setting."""
    copied = tmp_path / "grid"
    shutil.copytree(grid, copied)
    file = copied / "peak-lr=0.001-seed1" / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line.replace('"dev"', '"de') if '"dev"' in line else line for line in lines))
    assert cli.main([*words, "--dir", str(copied)]) == 0
    assert "has lost the held-out figures of step 3; measuring them again" in capsys.readouterr().err
    again, before = results_of(copied), results_of(grid)
    for one, other in zip(again["settings"], before["settings"], strict=True):
        assert one["dev"]["loss"]["mean"] == pytest.approx(other["dev"]["loss"]["mean"], rel=1e-6)
        assert one["dev"].keys() == other["dev"].keys()
    assert again["best"]["setting"] == before["best"]["setting"]


def test_runs_on_other_examples_are_not_added(grid, words, files, tmp_path, capsys):
    shutil.copytree(grid, tmp_path / "grid")
    (named,) = [word for word in files if word.startswith("--task.train=")]
    train = tmp_path / "train.tsv"
    train.write_text(Path(named.partition("=")[2]).read_text("utf-8") + "the moon\ta\n", "utf-8")
    tree = json.loads((tmp_path / "grid" / "grid.json").read_text("utf-8"))
    tree["config"]["task"]["train"] = [str(train)]  # as if the file had been changed where it lies
    (tmp_path / "grid" / "grid.json").write_text(json.dumps(tree), "utf-8")
    more = [f"--task.train={train}" if word == named else word for word in words]
    assert cli.main([*more, "--seeds", "3", "--dir", str(tmp_path / "grid")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "train.tsv is not what it was when " in error and "could not be compared; put it back, or give" in error
    assert json.loads((tmp_path / "grid" / "grid.json").read_text("utf-8")) == tree  # the seeds of before


def test_runs_that_would_begin_from_another_checkpoint_are_not_added(grid, words, tmp_path, capsys):
    """RUN was trained further, or its newest checkpoint is lost, since other runs began from it."""
    shutil.copytree(grid, tmp_path / "grid")
    start = json.loads((grid / "grid.json").read_text("utf-8"))["start"]
    (newest,) = (int(step.name) for step in (BERT / "checkpoints").iterdir())
    assert start["step"] == newest and start["digest"]
    base = shutil.copytree(BERT, tmp_path / "base")
    more = [str(base) if word == str(BERT) else word for word in words]
    more = [*more, "--seeds", "3", "--dir", str(tmp_path / "grid")]
    shutil.copytree(grid / "peak-lr=0.02-seed0" / "checkpoints" / "3", base / "checkpoints" / str(newest + 1))
    code, err = run_command(capsys, *more)
    line = f"{base} is not what it was when runs of this grid began from its step {newest} (now step {newest + 1})"
    assert code == 2 and line in err and "put it back, or give another --dir" in err
    shutil.rmtree(base / "checkpoints" / str(newest + 1))
    with random_training(3):
        code, err = run_command(capsys, *more)  # wherever RUN lies by now
    assert code == 0 and "2 of 6 runs are to be trained" in err


def test_the_test_figures_are_those_of_the_test_examples_that_are_given(grid, words, files, tmp_path, capsys):
    """Whether another file is named, or the same one has other content by now; one that is gone is no longer needed."""
    shutil.copytree(grid, tmp_path / "grid")
    (named,) = [word for word in files if word.startswith("--task.test=")]
    rows = Path(named.partition("=")[2]).read_text("utf-8").splitlines()
    test = tmp_path / "test.tsv"
    words = [f"--task.test={test}" if word == named else word for word in words] + ["--dir", str(tmp_path / "grid")]
    for content in (rows, rows[:4], [rows[0], *(f"{row[:-1]}{'ba'['ab'.index(row[-1])]}" for row in rows[1:])]):
        test.write_text("\n".join(content) + "\n", "utf-8")
        result = json_of(*words)
        measured = "measuring" in capsys.readouterr().err
        assert measured == (content is not rows)
        runs = [run["run"] for run in result["best"]["runs"]]
        losses = [contexture.evaluate(run, dev=str(test), step=3)["metrics"]["loss"] for run in runs]
        assert result["test"]["loss"]["mean"] == np.mean(losses)
        capsys.readouterr()
    test.unlink()
    assert json_of(*words) == result and "measuring" not in capsys.readouterr().err


def test_a_metric_that_no_run_has_is_refused(grid, words, capsys):
    code, err = run_command(capsys, *words, "--evaluate.metric", "exact_match", "--dir", grid)
    assert code == 2 and "evaluate.metric=exact_match is not measured; there are loss, accuracy" in err
    assert cli.main([*words, "--dir", str(grid)]) == 0


@pytest.mark.long
def test_a_run_that_diverges_is_noted_and_its_setting_is_never_the_best(files, tmp_path, capsys):
    words = ["finetune", BERT, *files, "--optim.name", "adamw", "--optim.clip", "0", "--optim.max-skipped", "1",
             "--grid", "lr=1e-3,1e30", "--dir", tmp_path / "grid"]  # fmt: skip
    result = json_of(*words)
    assert "peak-lr=1e+30-seed0 diverged: loss or gradient were not finite" in capsys.readouterr().err
    good, bad = result["settings"]
    assert result["best"] == good and not bad["dev"] and "were not finite" in bad["runs"][0]["diverged"]
    code = cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert code == 0 and not err and [line.split()[1] for line in out.splitlines()[3:5]] == ["0", "1"]


@pytest.mark.long
def test_a_grid_in_python_is_that_of_the_command(tmp_path):
    rows = [
        (f"the cat sees the {what}", "ab"[n % 2]) for n, what in enumerate(("river", "boat", "moon", "old man") * 4)
    ]
    more = {"train": rows, "dev": rows[:4], "dir": tmp_path / "grid"}
    options = {"steps": 1, "data.batch": 8, "log.tensorboard": False}
    folder = contexture.finetune(
        BERT, "classify", **more, options=options, grid={"init.redraw_layers": [0, 1]}, seeds=1
    )
    result = results_of(folder)
    assert [setting["setting"] for setting in result["settings"]] == [
        {"init.redraw_layers": 0},
        {"init.redraw_layers": 1},
    ]
    assert {run.name for run in folder.glob("*seed*")} == {"redraw-layers=0-seed0", "redraw-layers=1-seed0"}
    assert "test" not in result and result["settings"][0]["dev"]["loss"]["deviation"] is None
    with pytest.raises(contexture.ConfigError, match=r"grid was trained with another train.jsonl"):
        contexture.finetune(BERT, "classify", **{**more, "train": rows[:8]}, options=options, seeds=2)


@pytest.mark.long
def test_a_grid_killed_twice_has_the_table_of_one_that_was_not(door, task_words, task_files, tmp_path):
    """Six settings and three seeds: killed in the middle, stopped in the middle of the rest, then left alone."""
    at = task_words().index("--optim.peak-lr")
    words = [*task_words()[:at], *task_words()[at + 2 :], "--task.test", task_files / "classify.dev.tsv",
             "--grid", "optim.peak-lr=1e-3,3e-3,1e-2", "--grid", "data.batch=8,16", "--seeds", "3"]  # fmt: skip
    at = words.index("--data.batch")
    words = words[:at] + words[at + 2 :]
    words[words.index("--steps") + 1] = "20"
    whole = door(*words, "--dir", tmp_path / "whole", "--json")
    assert whole.returncode == 0, whole.stderr
    # At most three numbers of rows for each size of a batch, and not a program for each run.
    assert 2 <= whole.stderr.count("compiling the training step") <= 6
    folder = tmp_path / "killed"
    for kill, runs in ((signal.SIGKILL, 4), (signal.SIGTERM, 10)):
        process = door(*words, "--dir", folder, "--json", wait=False)
        deadline = time.monotonic() + 300
        while len(list(folder.glob("*/checkpoints/10"))) < runs and time.monotonic() < deadline:
            time.sleep(0.02)
            assert process.poll() is None, process.communicate()
        process.send_signal(kill)
        _, err = process.communicate(timeout=120)
        assert process.returncode == (-signal.SIGKILL if kill == signal.SIGKILL else 75), err
    last = door(*words, "--dir", folder, "--json")
    assert last.returncode == 0, last.stderr
    assert last.stdout.replace(str(folder), str(tmp_path / "whole")) == whole.stdout
    assert "runs are to be trained" in last.stderr
