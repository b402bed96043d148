"""The examples: notebooks that are valid, readable and run; a page of Python that fine-tunes."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import contexture
from tests.conftest import ROOT
from tests.helpers.notebooks import executed, read

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
MOST_BYTES = 150_000
NAMES = [file.stem for file in NOTEBOOKS]


def test_there_are_three_notebooks():
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("file", NOTEBOOKS, ids=NAMES)
def test_a_notebook_is_valid_and_shows_what_its_cells_gave(file: Path):
    notebook = read(file)
    assert file.stat().st_size < MOST_BYTES
    shown = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            compile(cell.source, file.name, "exec")
            assert not [
                output for output in cell.outputs if output.output_type == "error" or output.get("name") == "stderr"
            ]
            shown += len(cell.outputs)
    assert shown > 3


@pytest.mark.parametrize("file", NOTEBOOKS, ids=NAMES)
def test_a_notebook_has_no_path_of_a_machine(file: Path):
    text = re.sub(r'"image/(png|svg\+xml)": .*?\]?,\n', "", file.read_text("utf-8"))
    assert not re.findall(r"(?<![\w.])/(?:home|root|tmp|Users|usr|work)\b", text)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=NAMES)
def test_the_links_of_a_notebook_lead_to_files(file: Path):
    for cell in read(file).cells:
        for link in re.findall(r"\]\((?!https?:|#)([^)\s#]+)", cell.source):
            assert (file.parent / link).is_file(), link


@pytest.mark.long
@pytest.mark.parametrize("file", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs_alone(file: Path, tmp_path: Path, environment, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", environment(1)["XLA_FLAGS"])  # for its kernel: one device, as its readers have
    shutil.copy(file, tmp_path)
    notebook = executed(read(tmp_path / file.name), tmp_path, seconds=1800)
    assert not [
        output for cell in notebook.cells for output in cell.get("outputs", []) if output.get("name") == "stderr"
    ]


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("finetune_example", ROOT / "examples" / "finetune.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_the_page_that_fine_tunes_runs_from_a_run(tiny_run, tmp_path, capsys, monkeypatch, one_device):
    finetune = contexture.finetune
    monkeypatch.setattr(
        contexture, "finetune", lambda *a, options, **k: finetune(*a, options={**options, "epochs": 0.2}, **k)
    )
    _script().main(tmp_path, tiny_run)
    first, *answers = capsys.readouterr().out.splitlines()
    assert first.startswith("accuracy on 60 held-out examples: ")
    assert len(answers) == 2 and all(answer.split()[0] in ("kitchen", "garden", "office") for answer in answers)


@pytest.mark.long
def test_the_page_that_fine_tunes_learns_its_task(tmp_path, environment):
    command = [sys.executable, str(ROOT / "examples" / "finetune.py"), str(tmp_path)]
    out = subprocess.run(command, env=environment(1), capture_output=True, text=True, check=True).stdout
    assert float(out.splitlines()[0].split()[-1].rstrip("%")) > 95.0
