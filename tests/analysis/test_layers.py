"""The weights of ELMo's layers that tasks learned, grouped by task."""

import json
from pathlib import Path

import numpy as np
import pytest

from contexture.analysis.layers import draw, layers
from tests.conftest import ROOT

PARAMS = {"heads_tag": {"features": {"mix": {"weights": np.zeros(3), "gamma": np.ones(())}}}}
"""A head's mix with equal weights."""


@pytest.mark.parametrize(
    ("train", "names"),
    [("tasks/train.jsonl", ["tag tasks/train", "tag tasks/train"]), ("a/inputs/train.jsonl", ["tag a", "tag b"])],
)
def test_a_task_has_the_name_of_its_files_or_of_the_run_that_holds_them(tmp_path: Path, train, names):
    record = json.loads((ROOT / "tests/golden/elmo_tag/run.json").read_text())
    for name in "ab":
        (tmp_path / name).mkdir()
        record["config"]["task"]["train"] = [train]
        (tmp_path / name / "run.json").write_text(json.dumps(record))
    mixes = layers([tmp_path / "a", tmp_path / "b"], lambda folder: PARAMS)
    assert [mix["task"] for mix in mixes] == names


def test_the_weights_of_the_last_four_layers_have_those_layers_numbers(tmp_path: Path):
    """Those of five layers and the words' embeddings, beside a mix of all six of the same task."""
    record = json.loads((ROOT / "tests/golden/elmo_tag/run.json").read_text())
    record["config"]["model"]["layers"] = 5
    counts = {"all": 6, "last-four": 4}
    for name in counts:
        record["config"]["head"]["mix"] = name
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(record))
    weights = {name: {"weights": np.zeros(count), "gamma": np.ones(())} for name, count in counts.items()}
    folders = [tmp_path / name for name in counts]
    mixes = layers(folders, lambda folder: {"heads_tag": {"features": {"mix": weights[folder.name]}}})
    assert [mix["layers"] for mix in mixes] == [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5]]

    draw(mixes, tmp_path / "layers.pdf")
    pdf = (tmp_path / "layers.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and b"/Subtype /CIDFontType2" in pdf and b"/Type3" not in pdf

    draw(mixes, tmp_path / "layers.svg")
    drawn = (tmp_path / "layers.svg").read_text()
    assert "(input)" in drawn and "(input, layers 2 to 5)" in drawn
    legend = [name for name in ("words", "layer 0", "layer 1", "layer 5", "layer 6") if f"<!-- {name} -->" in drawn]
    assert legend == ["words", "layer 1", "layer 5"]
