"""Folders of transformers that are changed, and refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.helpers.commands import run_command

GOLDEN = ROOT / "tests" / "golden"
Change = Callable[[Path], object]


def raw_with(name: str, edit: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / name).write_bytes(edit((folder / name).read_bytes()))


def config_with(**values: Any) -> Change:
    return raw_with("config.json", lambda raw: json.dumps({**json.loads(raw), **values}).encode())


def refused(capsys: pytest.CaptureFixture[str], folder: Path, line: str, *more: str) -> None:
    """In one line, and nothing lies there afterwards."""
    existing = sorted(folder.parent.iterdir())
    code, err = run_command(capsys, "import", "hf", folder, "--to", folder.parent / "run", *more)
    assert code == 2 and line in err and err.startswith("DataError: ") and len(err.splitlines()) == 1, err
    assert sorted(folder.parent.iterdir()) == existing
