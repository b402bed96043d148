"""The original's own small biLM gives its own vectors."""

import json
from typing import Any

import h5py
import numpy as np

from tests.helpers.commands import json_of
from tests.helpers.parity_rule import assert_close


def test_the_originals_vectors_for_its_own_sentences(shared, published_elmo, tmp_path):
    """Three lines at a time, each going on from the line three before it, as its vectors were made: file k holds the
    lines k, k + 3, …, of each the two directions of the top layer."""
    golden = shared / "data" / "golden_bilm_tf" / "model"
    sentences = json.loads((golden / "lm_embeddings_sentences.json").read_text("utf-8"))
    lines = [of[number] for number in range(10) for of in sentences]
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    to = ("--input", tmp_path / "text.txt", "--to", tmp_path / "v.hdf5")
    summary = json_of("embed", published_elmo, *to, "--layers", "last", "--batch", 3, "--stateful")
    assert summary["lines"] == 30
    with h5py.File(tmp_path / "v.hdf5") as ours:
        for k in range(3):
            with h5py.File(golden / f"lm_embeddings_{k}.hdf5") as theirs:
                for number in range(10):
                    expected: Any = theirs[str(number)]
                    got: Any = ours[str(3 * number + k)]
                    assert_close(got[()], np.concatenate([*expected[()]], -1), atol=1e-6, rtol=0)
