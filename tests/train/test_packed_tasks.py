"""Sequences that share rows: losses, gradients and answers are the ones of sequences with a row each."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.data.config import DataConfig, TaskConfig
from contexture.data.packing import apart
from contexture.data.tasks.batch.batches import TaskBatches
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.config import BertConfig, GptConfig, HeadConfig
from contexture.models.layers.dropout import dropout_key
from contexture.models.model import Model, Outputs
from contexture.train.checkpoints.transfer import model_of
from contexture.train.objectives import Objective, loss, objective_of
from contexture.train.settings.run import Run
from tests.data.tasks.batch.test_gpt_layout import LETTERS, WORDS
from tests.helpers.random_runs import random_parameters

SIZES: dict[str, Any] = {"vocab": 32, "length": 32, "layers": 2, "hidden": 16, "heads": 2, "ffn": 32, "dropout": 0.3}
MODELS = {
    "bert": BertConfig(**SIZES, attention_dropout=0.2),
    "gpt": GptConfig(**SIZES, attention_dropout=0.2, norm="post"),
    "gpt2": GptConfig(**SIZES, attention_dropout=0.2, norm="pre", local_window=3),
}
TOKENIZERS: dict[str, Tokenizer] = {"bert": WORDS, "gpt": LETTERS, "gpt2": LETTERS}
ALPHABET = {"bert": [f"w{n}" for n in range(1, 9)], "gpt": list("bcdefgh"), "gpt2": list("bcdefgh")}
CASES: dict[str, tuple[str, dict[str, Any], HeadConfig]] = {
    "classify": ("classify", {}, HeadConfig()),
    "pairs": ("classify", {}, HeadConfig()),
    "regress": ("regress", {}, HeadConfig()),
    "both orders": ("regress", {"symmetric": True}, HeadConfig()),
    "tag": ("tag", {}, HeadConfig()),
    "tag by an LSTM on a mix": ("tag", {}, HeadConfig(mix="all", cells=5, mix_norm=True)),
    "classify on a mix": ("classify", {}, HeadConfig(mix="all", mix_norm=True, cells=4)),
    "choice": ("choice", {}, HeadConfig()),
    "span": ("span", {}, HeadConfig()),
}


def rows_of(case: str, family: str, count: int) -> str:
    """A file of examples for a case, from one to nine words long."""
    rng = np.random.default_rng(7)

    def text(most: int = 9) -> str:
        return " ".join(rng.choice(ALPHABET[family], rng.integers(1, most + 1)))

    lines = {
        "classify": lambda: f"{text()}\t{rng.integers(3)}",
        "pairs": lambda: f"{text()}\t{text()}\t{rng.integers(3)}",
        "regress": lambda: f"{text()}\t{rng.normal():.3f}",
        "both orders": lambda: f"{text(4)}\t{text(4)}\t{rng.normal():.3f}",
        "choice": lambda: f"{text(4)}\t{text(3)}\t{text(3)}\t{text(3)}\t{rng.integers(3)}",
    }
    heads = {
        "pairs": "sentence1\tsentence2\tlabel",
        "both orders": "sentence1\tsentence2\tlabel",
        "choice": "text\tchoice0\tchoice1\tchoice2\tlabel",
    }
    if case.startswith("tag"):
        sentences = ("\n".join(f"{word} {'AB'[rng.integers(2)]}" for word in text().split()) for _ in range(count))
        return "\n\n".join(sentences) + "\n"
    if case == "span":
        lines["span"] = lambda: "{}\t{}\t{}".format(text(2), *((lambda c: (c, c.split()[-1]))(text(6))))
        heads["span"] = "question\tcontext\tanswers"
    kind = "classify" if case == "classify on a mix" else case
    return heads.get(kind, "text\tlabel") + "\n" + "".join(lines[kind]() + "\n" for _ in range(count))


def opened(
    case: str, family: str, folder: Path, parts: int = 1, devices: int = 1, count: int = 32
) -> tuple[Run, Model, Objective, TaskBatches]:
    kind, options, head = CASES[case]
    file = folder / ("train.conll" if kind == "tag" else "train.tsv")
    file.write_text(rows_of(case, family, count), "utf-8")
    task = TaskConfig(kind=cast(Any, kind), train=(str(file),), **options)
    config = DataConfig(batch=16, length=32, max_predictions=1)
    store = encode(task, TOKENIZERS[family], folder / "data", length=32)
    run = Run(model=MODELS[family], data=config, task=task, head=head)
    name = cast(Any, family.rstrip("2"))
    batches = TaskBatches(store, TOKENIZERS[family], config, task, family=name, seed=3, parts=parts, devices=devices)
    run = dataclasses.replace(run, data=dataclasses.replace(config, length=batches.length))
    return run, model_of(run, store.labels), objective_of(run), batches


def arrays(batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return {name: jnp.asarray(x) for name, x in batch.items()}


def computed(model: Model, objective: Objective, params: Any, batch: Any, seed: int | None) -> Any:
    """(loss, its gradient, predictions) of a batch; seed: of dropout, None without."""
    weights = objective.weights(batch)
    key = None if seed is None else dropout_key(seed, jnp.asarray(5), jnp.arange(len(batch["valid"])))

    def of(params: Any) -> Any:
        outputs = cast(Outputs, model.apply({"params": params}, batch, key))
        return loss(objective, objective.sums(outputs, batch), weights), objective.predictions(outputs)

    (value, predictions), gradient = jax.value_and_grad(of, has_aux=True)(params)
    # What is computed at padding is nobody's.
    inside = batch["mask"] > 0
    predictions = {
        name: jnp.where(inside.reshape(inside.shape + (1,) * (x.ndim - 2)), x, 0) if x.shape[:2] == inside.shape else x
        for name, x in predictions.items()
    }
    return value, gradient, predictions


def close(one: Any, other: Any, tolerance: float = 1e-5) -> None:
    """All arrays of two trees are equal, relative to the largest number of each tree's array."""
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(one))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        finite = jnp.isfinite(a)
        assert (finite == jnp.isfinite(b)).all()
        np.testing.assert_allclose(
            np.where(finite, a, 0), np.where(finite, b, 0), rtol=tolerance, atol=tolerance * min(largest, 1.0)
        )


@pytest.mark.parametrize("seed", [None, 4], ids=["no dropout", "dropout"])
@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("case", CASES)
def test_a_step_of_packed_rows_is_one_of_sequences_alone(case: str, family: str, seed: int | None, tmp_path: Path):
    if case == "both orders" and family == "bert":
        pytest.skip("a GPT's alone")
    run, model, objective, batches = opened(case, family, tmp_path)
    packed = batches.read(2)
    alone = apart(packed)
    assert packed["tokens"].size <= alone["tokens"].size
    params = random_parameters(model, arrays(packed), deviation=0.3)
    expected = computed(model, objective, params, arrays(alone), seed)
    close(expected, computed(model, objective, params, arrays(packed), seed), 2e-5)
