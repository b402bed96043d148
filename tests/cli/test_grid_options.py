"""`--grid` and `--seeds`: how they are written, and that a mistake in them is one line before any work."""

import shutil
from pathlib import Path

import pytest

import contexture
from contexture.cli import main as cli
from contexture.cli.grid_options import join_repeated, read_grid, table
from contexture.configs.finetuning import finetune_run
from contexture.grid_search import make_grid
from contexture.overrides import with_options
from contexture.train.errors import ConfigError
from contexture.train.grid.results import GridResult, SettingResult
from contexture.train.grid.settings import Grid
from contexture.train.settings.run_file import read
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
RUN = finetune_run(read(GOLDEN / "bert").run, "runs/bert", "classify")
TASK = "--task.kind classify --task.train train.tsv --task.dev train.tsv --dir new"
MISTAKES = {
    "--grid optim.peek-lr=1,2": "--grid: there is no option optim.peek-lr (did you mean --optim.peak-lr?)",
    "--grid learning-rate=1,2": "--grid: there is no option learning-rate (did you mean --optim.peak-lr?)",
    "--grid model.cells=1": "--grid: there is no option model.cells (--model.cells is for an ELMo)",
    "--grid head.crf=true": "--grid: head.crf is for --task.kind tag of an ELMo or static vectors, and has no meaning",
    "--grid": "--grid wants a field and its values: --grid optim.peak-lr=2e-5,3e-5",
    "--grid optim.peak-lr": "--grid optim.peak-lr: give a field and its values: --grid optim.peak-lr=2e-5,3e-5",
    "--grid lr=": "--grid lr=: give a field and its values: --grid optim.peak-lr=2e-5,3e-5",
    "--grid lr=1e-3,,2e-3": "--grid optim.peak-lr: a value is empty; give values with commas between them",
    "--grid lr=fast,1e-3": "--grid: optim: peak_lr is 'fast', not a number",
    "--grid data.batch=8,1.5": "--grid: data: batch is '1.5', not a whole number",
    "--grid init.drop-heads=yes": "--grid: init: drop_heads is 'yes', not true or false",
    "--grid optim.name=adamw,adam": "--grid: optim: name is 'adam', not one of bert, adamw, gpt1, "
    "lamb, adafactor, adagrad",
    "--grid lr=1e-3,-1": "--grid: optim.peak-lr=-1.0 is not above 0",
    "--grid data.length=8,600": "--grid: data.length=600 exceeds model.length=24; lower data.length or raise",
    "--grid lr=1e-3,1e-3": "--grid optim.peak-lr: 0.001 stands twice; give each value once",
    "--grid lr=1e-3 --grid optim.peak-lr=2e-3": "--grid optim.peak-lr is given twice; give all of its values at once",
    "--grid lr=1e-3 --lr 1e-3": "--grid optim.peak-lr varies from run to run, and --optim.peak-lr is given for all",
    "--grid epochs=1,2 --steps 5": "--grid epochs varies from run to run, and --steps is given for all of them; leave",
    "--grid epochs=1 steps=3": "--steps and --epochs both say how long to train; give one of them",
    "--grid seed=1,2": "--grid: the seed varies by --seeds N, from --seed on; leave it out here",
    "--grid mesh.fsdp=1,2": "--grid: mesh.fsdp cannot vary within a grid; give it once for all runs, as --mesh.fsdp",
    "--grid dir=a,b": "--grid: dir cannot vary within a grid; give it once for all runs, as --dir",
    "--grid task.dev=a,b": "--grid: task.dev cannot vary within a grid; give it once for all runs, as --task.dev",
    "--grid evaluate.metric=a,b": "--grid: evaluate.metric cannot vary within a grid; give it once",
    "--grid model.layers=1,2": "--grid: model.layers cannot vary within a grid; give it once for all runs",
    "--grid task.class-weights=balanced": "--grid: task.class-weights changes the loss itself, and the best setting",
    "--grid init.redraw-layers=0,3": "--grid: init.redraw-layers=3 is more than the model's 2 layers",
    "--grid lr=1e-3 --mesh.distributed": "mesh.distributed contradicts a grid, which one process trains; leave one of",
    "--seeds 0": "seeds=0 is not at least 1; give the number of runs of each setting: --seeds 5",
    "--seeds 2 --seed 2147483647": "seed=2.15e+09 is not within 2,147,483,647; give a smaller number",
    "--seeds x": "--seeds wants a whole number, not 'x'",
    "--seeds 2 --task.dev-fraction 0": "a grid chooses by held-out examples, and there are none; give --task.dev",
    "--seeds 2 --dir run": "run is the folder of one run; give a grid another --dir",
}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    shutil.copytree(GOLDEN / "bert", tmp_path / "bert")
    shutil.copytree(GOLDEN / "bert_classify", tmp_path / "run")
    (tmp_path / "train.tsv").write_text("text\tlabel\na film\tgood\na bore\tbad\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_in_a_grid_is_one_line_and_nothing_is_written(here, capsys, words):
    task = TASK.replace("--task.dev train.tsv ", "") if "dev-fraction" in words else TASK
    task = task.replace(" --dir new", "") if "--dir" in words else task
    before = sorted(here.rglob("*"))
    code = cli.main(f"finetune bert {task} {words}".split())
    out, err = capsys.readouterr()
    assert code == 2 and not out and len(err.splitlines()) == 1, err
    assert MISTAKES[words] in err and "Traceback" not in err, err
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (5, "grid is 5; give fields with their values: {'optim.peak_lr': [2e-5, 3e-5]}"),
        ({1: [2]}, "grid is {1: [2]}; give fields with their values"),
        ({"optim.peak_lr": None}, "grid optim.peak-lr is None; give a list of values"),
    ],
)
def test_what_is_no_grid_in_python_is_one_clear_line(values, message):
    with pytest.raises(ConfigError) as error:
        make_grid(RUN, values, where="grid")
    assert message in str(error.value)


def test_losses_over_other_windows_are_not_compared():
    run = with_options(finetune_run(read(GOLDEN / "bert").run, "bert", "span"), {"data.length": 16})
    lengths = {"data.length": [16, 24]}
    with pytest.raises(ConfigError, match="data.length changes the loss itself, .* such as --evaluate.metric f1"):
        make_grid(run, lengths)
    assert len(make_grid(with_options(run, {"evaluate.metric": "f1"}), lengths).runs) == 2
    assert len(make_grid(RUN, {"data.length": [8, 16]}).runs) == 2
    with pytest.raises(ConfigError, match="data.length changes the loss itself"):
        make_grid(with_options(RUN, {"task.windows": "mean"}), {"data.length": [8, 16]})


def test_another_command_has_no_grid(here, capsys):
    assert cli.main(["pretrain", "bert.tiny", "--data.path", "train.tsv", "--dir", "new", "--grid", "lr=1"]) == 2
    assert "--grid is for contexture finetune, and has no meaning here; leave it out" in capsys.readouterr().err


def test_a_grid_is_given_at_once_or_in_turn():
    apart = "RUN --grid lr=1,2 --dir d --grid=data.batch=3 epochs=1 --seeds 2".split()
    assert join_repeated(apart, "--grid") == "RUN --grid lr=1,2 data.batch=3 epochs=1 --dir d --seeds 2".split()
    assert join_repeated(["RUN", "--dir", "d"], "--grid") == ["RUN", "--dir", "d"]


def test_values_are_read_as_the_run_has_them():
    words = ["lr=2e-5,1", "batch=8, 16", "init.drop-heads=true,false", "optim.frozen=bias,ffn norm", "optim.name=adamw"]
    assert read_grid(words, RUN) == {
        "optim.peak_lr": (2e-5, 1.0), "data.batch": (8, 16), "init.drop_heads": (True, False),
        "optim.frozen": (("bias",), ("ffn", "norm")), "optim.name": ("adamw",),
    }  # fmt: skip
    with pytest.raises(ConfigError, match="--grid data.batch is given twice"):
        read_grid(["batch=1", "data.batch=2"], RUN)


def test_the_table_has_a_row_for_each_setting_and_marks_the_best():
    def setting(rate: float, mean: float | None, runs: int = 2) -> SettingResult:
        spread = {"mean": mean, "deviation": None if mean is None or runs == 1 else 0.012345}
        return {"setting": {"optim.peak_lr": rate}, "dev": {"loss": spread, "accuracy": spread}, "runs": [
            {"run": f"d/{n}", "seed": n, "step": 1} for n in range(runs)]}  # type: ignore[typeddict-item]  # fmt: skip

    first, second = setting(1e-3, 0.5), setting(2e-3, None)
    result: GridResult = {
        "grid": "d",
        "metric": "loss",
        "settings": [first, second],
        "best": first,
        "test": first["dev"],
    }
    printed = table(result, RUN)
    assert printed["dev, mean ± standard deviation of 2 seeds"] == [
        {"optim.peak-lr": "0.001", "loss": "0.5000 ± 0.0123", "accuracy": "0.5000 ± 0.0123", "best": "←"},
        {"optim.peak-lr": "0.002", "loss": "–", "accuracy": "–", "best": ""},
    ]
    assert printed["best"] == "--optim.peak-lr 0.001" and printed["test, of the best alone"] == {
        "loss": "0.5000 ± 0.0123", "accuracy": "0.5000 ± 0.0123",
    }  # fmt: skip
    failed = setting(1.0, 0.25, 1)
    failed["runs"][0]["diverged"] = "not finite"
    printed = table({"grid": "d", "metric": "loss", "settings": [failed], "best": None}, RUN)
    assert printed["dev, one seed"] == [
        {"optim.peak-lr": "1.0", "diverged": 1, "loss": "0.2500", "accuracy": "0.2500", "best": ""}
    ]
    assert str(printed["best"]).startswith("none:") and printed["all figures"] == "d/results.json"


@pytest.mark.long
@pytest.mark.parametrize("python", [False, True], ids=["command", "function"])
def test_an_option_may_have_its_meaning_beside_what_varies(tiny_run, tmp_path, python, capsys):
    """A biLSTM over each choice of layers: without a choice it reads nothing, and every run has one."""
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("words\ttags\n" + "the cat\tD N\na dog\tD N\n" * 4)
    train, dev, folder = str(tmp_path / "train.tsv"), str(tmp_path / "dev.tsv"), tmp_path / "grid"
    if python:
        options = {"steps": 1, "data.batch": 8, "head.cells": 4, "head.lstm_layers": 2, "optim.frozen": "backbone"}
        contexture.finetune(tiny_run, "tag", train=train, dev=dev, dir=folder, options=options,
                            grid={"head.mix": ["top", "all"]})  # fmt: skip
    else:
        words = f"finetune {tiny_run} --task.kind tag --task.train {train} --task.dev {dev} --dir {folder} --steps 1"
        words += " --data.batch 8 --head.cells 4 --head.lstm-layers 2 --optim.frozen backbone --grid head.mix=top,all"
        assert cli.main(words.split()) == 0
        assert cli.main(words.split()) == 0  # what is there already is the same grid
        assert cli.main([*words.replace("mix=top", "mix=words,top").split()]) == 0
    heads = {path.name: read(path).run.head for path in folder.glob("mix=*")}
    assert {name: (head.cells, head.lstm_layers) for name, head in heads.items()} == dict.fromkeys(heads, (4, 2))
    assert {head.mix for head in heads.values()} == {"top", "all"} | ({"words"} if not python else set())


def test_the_runs_of_a_grid_have_options_beside_what_varies(tiny_run, tmp_path, monkeypatch):
    """As the test above, without training."""
    rows = [(["the", "cat"], ["D", "N"])] * 4
    grids: list[Grid] = []
    monkeypatch.setattr("contexture.api._train_grid", lambda grid, base: grids.append(grid))
    options = {"head.cells": 4, "head.lstm_layers": 2, "optim.frozen": "backbone"}
    contexture.finetune(tiny_run, "tag", train=rows, dev=rows, dir=tmp_path / "grid", options=options,
                        grid={"head.mix": ["top", "all"]})  # fmt: skip
    heads = [run.head for run in grids[0].runs]
    assert [(head.mix, head.cells, head.lstm_layers) for head in heads] == [("top", 4, 2), ("all", 4, 2)]
    with pytest.raises(ConfigError, match="head.cells=4 has no meaning for head.mix=off"):
        contexture.finetune(tiny_run, "tag", train=rows, dev=rows, dir=tmp_path / "none", options=options)
