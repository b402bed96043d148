"""The weights of ELMo's layers that tasks learned, grouped by task."""

import json
from pathlib import Path

import numpy as np
import pytest

from contexture.analysis.layers import layers
from tests.conftest import ROOT

PARAMS = {"heads_tag": {"features": {"mix": {"weights": np.zeros(3), "gamma": np.ones(())}}}}
"""A head's mix with equal weights."""


@pytest.mark.parametrize(
    ("train", "names"),
    [("tasks/train.jsonl", ["tag tasks/train", "tag tasks/train"]), ("a/inputs/train.jsonl", ["tag a", "tag b"])],
)
def test_a_task_has_the_name_of_its_files_or_of_the_run_that_holds_them(tmp_path: Path, train, names):
    record = json.loads((ROOT / "tests/golden/elmo_task_format_1/run.json").read_text())
    for name in "ab":
        (tmp_path / name).mkdir()
        record["config"]["task"]["train"] = [train]
        (tmp_path / name / "run.json").write_text(json.dumps(record))
    mixes = layers([tmp_path / "a", tmp_path / "b"], lambda folder: PARAMS)
    assert [mix["task"] for mix in mixes] == names
