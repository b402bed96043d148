"""A grid's folder: what may live there, and what a second start may change."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from contexture.configs.finetuning import finetune_run
from contexture.grid_search import make_grid
from contexture.overrides import with_options
from contexture.train.errors import ConfigError
from contexture.train.grid.folder import diverged_runs, write
from contexture.train.grid.settings import Grid, as_options
from contexture.train.grid.train_grid import check_grid
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import read
from tests.train.run.test_formats import GOLDEN

BASE = with_options(
    finetune_run(read(GOLDEN / "bert").run, "runs/bert", "classify"),
    {"task.train": "train.tsv", "task.dev": "dev.tsv", "steps": 8},
)
VALUES = {"optim.peak_lr": (1e-3, 3e-3), "data.batch": (8, 16)}


def grid_in(folder: Path, values=VALUES, seeds: int = 3, **options) -> Grid:
    run = with_options(BASE, {name.replace("__", "."): value for name, value in options.items()} | {"dir": str(folder)})
    return make_grid(run, values, seeds)


def open_or_create(grid: Grid) -> dict[str, str]:
    """As a start does it: nothing is written of a grid that is refused."""
    diverged = diverged_runs(grid)
    write(grid, diverged)
    return diverged


def test_each_setting_and_seed_has_a_run_of_its_own_folder(tmp_path):
    grid = grid_in(tmp_path / "grid", seed=4)
    names = [
        f"peak-lr={rate},batch={size}-seed{seed}" for rate in (0.001, 0.003) for size in (8, 16) for seed in (4, 5, 6)
    ]
    assert [Path(run.dir).name for run in grid.runs] == names and {Path(run.dir).parent for run in grid.runs} == {
        tmp_path / "grid"
    }
    for run, name in zip(grid.runs, names, strict=True):
        expected = {"optim.peak_lr": run.optim.peak_lr, "data.batch": run.data.batch, "seed": run.seed, "dir": run.dir}
        assert run == with_options(BASE, expected)
        assert name == f"peak-lr={run.optim.peak_lr},batch={run.data.batch}-seed{run.seed}"
    assert as_options(grid.settings[1].values) == "--optim.peak-lr 0.001 --data.batch 16"
    assert [Path(run.dir).name for run in grid_in(tmp_path, {}, 2).runs] == ["seed0", "seed1"]
    same = grid_in(tmp_path, {"model.dropout": [0, 0.1], "optim.frozen": ["bias", ("ffn", "norm")]}, 1)
    assert Path(same.runs[1].dir).name == "dropout=0.0,frozen=ffn-norm-seed0" and same.runs[1].optim.frozen == (
        "ffn",
        "norm",
    )


@pytest.mark.parametrize(
    ("values", "seeds", "options", "line"),
    [
        (VALUES, 3, {"steps": 9}, "holds a grid with --steps 8, not 9; give --steps 8, or another --dir"),
        (VALUES, 3, {"model.dropout": 0.2}, "holds a grid with --model.dropout 0.1, not 0.2; give --model.dropout 0.1"),
        (VALUES, 3, {"evaluate.every": 2}, "holds a grid with --evaluate.every 0, not 2; give"),
        (VALUES, 3, {"evaluate.patience": 2}, "holds a grid with --evaluate.patience 0, not 2"),
        (VALUES, 3, {"seed": 1}, "holds a grid with --seed 0, not 1"),
        (VALUES, 3, {"init.drop_heads": True}, "holds a grid with --init.drop-heads false, not true"),
        (VALUES, 2, {}, "holds a grid of --seeds 3, not 2; a grid can only be made larger"),
        ({**VALUES, "data.batch": (16,)}, 3, {}, "holds a grid with --data.batch 8 too; give this value as well, or"),
        ({"optim.peak_lr": (1e-3, 3e-3)}, 3, {}, "holds a grid that varies --data.batch; vary the same fields, or"),
        ({**VALUES, "model.dropout": (0.1,)}, 3, {}, "holds a grid that does not vary --model.dropout; vary the same"),
    ],
)
def test_a_second_start_with_other_settings_is_refused_by_name(tmp_path, values, seeds, options, line):
    open_or_create(grid_in(tmp_path))
    before = (tmp_path / "grid.json").read_bytes()
    changed = with_options(dataclasses.replace(BASE, dir=str(tmp_path)), options)
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path} {line}")):
        open_or_create(make_grid(changed, values, seeds))
    assert (tmp_path / "grid.json").read_bytes() == before


def test_values_and_seeds_may_be_added(tmp_path):
    write(grid_in(tmp_path), {"peak-lr=0.003,batch=8-seed1": "not finite"})
    larger = {"optim.peak_lr": (3e-3, 1e-3, 1e-2), "data.batch": (16, 8)}
    assert open_or_create(grid_in(tmp_path, larger, 5)) == {"peak-lr=0.003,batch=8-seed1": "not finite"}
    again = grid_in(tmp_path, larger, 5, log__every=3, evaluate__metric="accuracy", mesh__fsdp=2)
    assert open_or_create(again) == {"peak-lr=0.003,batch=8-seed1": "not finite"}
    tree = json.loads((tmp_path / "grid.json").read_text())
    assert (tree["seeds"], tree["grid"]["optim.peak_lr"]) == (5, [3e-3, 1e-3, 1e-2])
    patient = grid_in(tmp_path / "patient", evaluate__patience=2)
    open_or_create(patient)
    with pytest.raises(ConfigError, match="holds a grid with --evaluate.metric loss, not accuracy"):
        open_or_create(grid_in(tmp_path / "patient", evaluate__patience=2, evaluate__metric="accuracy"))
    by_epochs = grid_in(tmp_path / "epochs", {"epochs": (1.0, 2)}, steps=3)
    open_or_create(by_epochs)
    assert open_or_create(grid_in(tmp_path / "epochs", {"epochs": (1.0, 2)}, steps=5)) == {}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("[]", "has format None; this version reads format 1"),
        ('{"format": 2}', "has format 2; this version reads format 1"),
        ("{", "cannot be read"),
        (
            '{"format": 1, "config": {}, "grid": {"seed": 3}, "seeds": 1, "diverged": {}}',
            """grid is "{'seed': 3}", which no training writes; put it back""",
        ),
        ('{"format": 1, "config": {}, "grid": {}, "seeds": "x", "diverged": {}}', "seeds is 'x', which no training"),
        ('{"format": 1, "config": {}, "grid": {}, "seeds": 1, "diverged": {}}', "grid.json: the configuration is not"),
    ],
)
def test_a_damaged_grid_file_is_one_line(tmp_path, content, line):
    (tmp_path / "grid.json").write_text(content)
    with pytest.raises(ConfigError, match=re.escape(line)):
        open_or_create(grid_in(tmp_path))


def test_a_folder_that_is_no_grids_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for name, line in (("run", "is the folder of one run"), ("file", "is a file; give a folder as --dir"),
                       ("mine", "holds thesis.tex and no grid.json: it is no grid's folder")):  # fmt: skip
        with pytest.raises(ConfigError, match=f"{name} {line}"):
            check_grid(grid_in(tmp_path / name))
    with pytest.raises(ConfigError, match="dir is empty; say where the grid shall live: --dir DIR"):
        check_grid(make_grid(BASE, {}, 2))
    with pytest.raises(ConfigError, match="mesh.distributed contradicts a grid, which one process trains"):
        check_grid(grid_in(tmp_path / "new", mesh__distributed=True))
    without: Run = dataclasses.replace(BASE, task=dataclasses.replace(BASE.task, dev=()), dir=str(tmp_path / "new"))
    with pytest.raises(ConfigError, match="a grid chooses by held-out examples, and there are none; give --task.dev"):
        check_grid(make_grid(without, {}, 2))
    check_grid(grid_in(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
