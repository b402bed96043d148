"""Vectors of texts: sentence-transformers makes of an exported folder what the run's own tokens give."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import contexture
from tests.helpers.parity_rule import close
from tests.interchange.hf_folders import GOLDEN

pytest.importorskip("sentence_transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("one_device"),
]

TEXTS = ["the cat sees the river", "a dog", "one old man likes his letter near the town"]
POOLED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda tokens_LD: tokens_LD.mean(0),
    "cls": lambda tokens_LD: tokens_LD[0],
    "max": lambda tokens_LD: tokens_LD.max(0),
    "lasttoken": lambda tokens_LD: tokens_LD[-1],
}


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("family", ["bert", "gpt"])
def test_vectors_of_texts_are_the_runs_own(family: str, pooling: str, gpt_run: Path, tmp_path: Path):
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

    run = gpt_run if family == "gpt" else GOLDEN / "bert_3_steps"
    contexture.export_model(run, "hf", tmp_path / "out", pooling=pooling)  # pyright: ignore[reportArgumentType]
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS)
    tokens = contexture.open(run).embed(TEXTS, of="tokens")
    close(theirs, np.stack([POOLED[pooling](each) for each in tokens]), pooling)
