"""The image: what the Dockerfile copies is there, and its lines, run without a container engine, make a command."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.mutants.origin import PACKAGES

SMALL = (
    "--model.layers 1 --model.hidden 16 --model.heads 2 --model.ffn 32 --model.vocab 150 --data.length 32 "
    "--data.max-predictions 5 --data.batch 8 --optim.warmup 1 --steps 2"
).split()


def _instructions(target: str) -> Iterator[tuple[str, str]]:
    """(instruction, its words) of a stage, after those of the stages that it is built from."""
    stages: dict[str, list[tuple[str, str]]] = {}
    stage = ""
    for line in (ROOT / "Dockerfile").read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        assert not line.endswith("\\") and not line[0].isspace(), f"one instruction a line: {line}"
        name, _, words = line.partition(" ")
        if name == "FROM":
            image, as_, stage = words.split()
            assert as_ == "AS"
            stages[stage] = list(stages.get(image, [(name, image)]))
        else:
            stages[stage].append((name, words))
    assert list(stages)[-1] == "cpu", "a build without --target makes the last stage"
    yield from stages[target]


def _copied(target: str = "cpu") -> list[tuple[list[str], str]]:
    """(sources, where to) of each COPY."""
    return [(words.split()[:-1], words.split()[-1]) for name, words in _instructions(target) if name == "COPY"]


def test_what_is_copied_is_there():
    for sources, to in _copied():
        for source in sources:
            path = ROOT / source
            assert path.exists(), source
            # COPY of a folder copies what is in it: a folder keeps its name only where it is given again
            assert to == (source if path.is_dir() else "./"), f"{source} → {to}"


def test_all_packages_and_what_the_build_reads_are_copied():
    sources = {source for some, _ in _copied() for source in some}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    folders = {path.partition("/")[0] for path in project["tool"]["setuptools"]["package-dir"].values()}
    assert folders == set(PACKAGES)
    needed = {"requirements-runtime.lock", "pyproject.toml", project["project"]["readme"]}
    assert sources == {*folders, *needed, *project["project"]["license-files"]}


def test_nothing_copied_is_kept_out_of_the_build():
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert lines[1] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    assert let_in == {source for some, _ in _copied() for source in some}
    kept_out = [line for line in lines[2:] if not line.startswith(("!", "#"))]
    assert not any(fnmatch.fnmatch(f"/{name}", f"/{line}") for line in kept_out for name in let_in)


def test_the_base_image_has_the_oldest_python_that_is_supported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (image,) = (words for name, words in _instructions("cpu") if name == "FROM")
    assert image == f"python:{project['requires-python'].removeprefix('>=')}-slim"


@pytest.mark.parametrize("device", ["cuda", "tpu"])
def test_an_image_for_a_device_adds_its_extra_at_the_locks_versions(device):
    base, own = list(_instructions("cpu")), list(_instructions(device))
    assert own[: len(base)] == base
    ((name, words),) = own[len(base) :]
    assert (
        name == "RUN" and words.endswith(f"-e '.[{device},gcs]'") and "--constraint requirements-runtime.lock" in words
    )


def test_the_stages_of_the_page_are_those_of_the_file():
    page = (ROOT / "docs" / "devices.md").read_text("utf-8")
    targets = set(re.findall(r"docker build .*--target (\w+)", page))
    assert targets == {"cuda", "tpu"} and all(list(_instructions(target)) for target in targets)


@pytest.mark.long
def test_the_lines_of_the_image_make_a_command_that_trains(tmp_path: Path, text_folder: Path, environment):
    """COPY and RUN as they stand, in an empty folder; a fresh environment is the image's Python."""
    image, python = tmp_path / "contexture", tmp_path / "python"
    image.mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(python)], check=True)
    env = {name: value for name, value in environment(1).items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["PATH"] = f"{python / 'bin'}{os.pathsep}{env['PATH']}"

    def run(*words: str, cwd: Path) -> str:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, env=env)
        assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    entry: list[str] = []
    for name, words in _instructions("cpu"):
        if name == "COPY":
            *sources, to = words.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
                    shutil.copytree(ROOT / source, image / to, ignore=leave)
                else:
                    shutil.copy(ROOT / source, image / to)
        elif name == "RUN":
            run("/bin/sh", "-c", words.replace(" --no-cache-dir", ""), cwd=image)  # no second download
        elif name == "ENTRYPOINT":
            entry = json.loads(words)
        else:
            assert name in ("FROM", "WORKDIR"), f"{name}: this test does not know how to run it"
    assert shutil.which(entry[0], path=env["PATH"]) == str(python / "bin" / entry[0])

    here = tmp_path / "here"
    here.mkdir()
    assert "pretrain" in run(*entry, "--help", cwd=here)
    assert "bert.tiny" in run(*entry, "recipes", cwd=here)
    run(*entry, "pretrain", "bert.tiny", "--data.path", str(text_folder), *SMALL, "--dir", "run", cwd=here)
    assert [json.loads(line)["step"] for line in (here / "run" / "metrics.jsonl").read_text().splitlines()][-1] == 2
    installed = {line.partition("==")[0] for line in run("pip", "freeze", cwd=here).splitlines()}
    assert not installed & {"pytest", "ruff", "pyright", "hypothesis"}
