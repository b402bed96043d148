"""The wheel puts one name into an environment, and works beside a user's own train.py, data/ and models/."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import contexture
from tests.conftest import ROOT, TINY
from tests.mutants.origin import PACKAGES

pytestmark = pytest.mark.long
THEIRS = "raise SystemExit('the user\\'s own module was imported')\n"
ASK = """
import contexture
from contexture.train.evaluation.predict import Predictor

model, params, tokenizer = contexture.load("run")
print(type(model).__module__, tokenizer.size, len(contexture.open("run").fill("the [MASK] sees the river", top=2)[0]))
print(Predictor("task")(["The queen sees the sea."])[0]["prediction"])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from the files that a source distribution holds."""
    source, to = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    names = (*PACKAGES, "pyproject.toml", "README.md", "LICENSE")
    subprocess.run(["cp", "-r", *(str(ROOT / name) for name in names), str(source)], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(to)]
    subprocess.run([*build, str(source)], check=True)
    (file,) = to.iterdir()
    return file


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory) -> Path:
    """The interpreter of a fresh environment that has the wheel; its libraries are those of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    libraries = sysconfig.get_path("purelib")  # what its *.pth files add, ours among them, is not added here
    (site / "libraries.pth").write_text(f"{libraries}\n")
    return folder / "bin" / "python"


def test_the_wheel_holds_one_folder(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"contexture"}
    assert {"contexture/models/bert.py", "contexture/train/loop.py", "contexture/cli/main.py"} <= set(names)
    assert "contexture/py.typed" in names
    pages = {file.relative_to(ROOT).as_posix() for file in (ROOT / "analysis").glob("*/*/*") if file.suffix != ".py"}
    pages = {name for name in pages if "__pycache__" not in name}
    assert pages and {f"contexture/{name}" for name in pages} <= set(names)


def test_the_wheels_version_is_that_of_the_package(wheel: Path, python: Path, tmp_path: Path):
    ask = "import contexture, importlib.metadata as m; print(contexture.__version__, m.version('contexture'))"
    done = subprocess.run([python, "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [contexture.__version__] * 2
    assert wheel.name.startswith(f"contexture-{contexture.__version__}-")


def test_a_type_checker_sees_the_annotations(python: Path, tmp_path: Path):
    (tmp_path / "theirs.py").write_text("import contexture\n\nreveal_type(contexture.open)\n")
    pyright = [sys.executable, "-m", "pyright", "--pythonpath", str(python), "theirs.py"]
    done = subprocess.run(pyright, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "Unknown" not in done.stdout and "-> TrainedModel" in done.stdout


@pytest.mark.parametrize("name", PACKAGES[1:])
def test_no_other_name_can_be_imported(python: Path, tmp_path: Path, name: str):
    done = subprocess.run([python, "-c", f"import {name}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and f"No module named '{name}'" in done.stderr


def test_it_trains_and_predicts_beside_a_users_own_modules(
    python: Path, tmp_path: Path, text_folder: Path, task_files: Path, environment
):
    for name in ("data", "models"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(THEIRS)
    for name in ("train.py", "configs.py", "analysis.py", "interchange.py"):
        (tmp_path / name).write_text(THEIRS)
    env = {**environment(1), "PYTHONPATH": str(tmp_path)}

    def run(*words: object) -> str:
        done = subprocess.run([*map(str, words)], cwd=tmp_path, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = python.with_name("contexture")
    assert os.access(command, os.X_OK)
    run(command, "pretrain", "bert.tiny", "--data.path", text_folder, *TINY, "--dir", "run")
    task = ("--task.kind", "classify", "--task.train", task_files / "classify.train.tsv")
    run(python, "-m", "contexture", "finetune", "run", *task, "--data.length", 32, "--steps", 10, "--dir", "task")
    loaded, label = run(python, "-c", ASK).splitlines()
    assert loaded.split() == ["contexture.models.model", "150", "2"] and label
