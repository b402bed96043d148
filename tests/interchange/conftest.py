"""A folder of transformers."""

import shutil
from pathlib import Path

import pytest

from contexture.interchange import convert
from tests.interchange.hf_folders import GOLDEN


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained BERT as transformers' files."""
    folder = tmp_path_factory.mktemp("out") / "bert"
    convert.export_model(GOLDEN / "bert_3_steps", "hf", folder, None)
    return folder


@pytest.fixture
def folder(out: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(out, tmp_path / "theirs"))
