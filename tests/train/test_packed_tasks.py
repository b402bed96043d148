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
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.word_level import SPECIAL, StaticWords, Words
from contexture.models import elmo
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, HeadConfig, VectorsConfig
from contexture.models.families import build
from contexture.models.layers.dropout import dropout_key
from contexture.models.model import Model, Outputs
from contexture.train import mesh as meshes
from contexture.train.checkpoints.transfer import model_of
from contexture.train.objectives import Objective, loss, objective_of
from contexture.train.programs import step_settings
from contexture.train.settings.run import Run
from contexture.train.settings.sections import MeshConfig, OptimConfig
from contexture.train.step import create, train_step
from tests.data.tasks.batch.test_gpt_layout import LETTERS, WORDS
from tests.helpers.commands import devices
from tests.helpers.long import long
from tests.helpers.parity_rule import worst
from tests.helpers.random_runs import random_parameters

SIZES: dict[str, Any] = {"vocab": 32, "length": 32, "layers": 2, "hidden": 16, "heads": 2, "ffn": 32, "dropout": 0.3}
MODELS: dict[str, Any] = {
    "bert": BertConfig(**SIZES, attention_dropout=0.2),
    "gpt": GptConfig(**SIZES, attention_dropout=0.2, norm="post"),
    "gpt2": GptConfig(**SIZES, attention_dropout=0.2, norm="pre", local_window=3),
    "elmo": ElmoConfig(
        vocab=32, char_width=4, filters=((1, 4), (2, 4)), highway=1, cells=8, projection=6, dropout=0.3, cell_clip=0.3
    ),
    "vectors": VectorsConfig(vocab=32, hidden=16),
}
NUMBERED = [f"w{n}" for n in range(1, 9)]
TOKENIZERS: dict[str, Tokenizer] = {
    "bert": WORDS,
    "gpt": LETTERS,
    "gpt2": LETTERS,
    "elmo": Words([*SPECIAL, *NUMBERED], "spaces"),
    "vectors": StaticWords(NUMBERED, "spaces"),
}
ALPHABET = {name: list("bcdefgh") if name.startswith("gpt") else NUMBERED for name in MODELS}
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
    if family in ("elmo", "vectors"):
        # Their heads read a mix of layers, and compare the two texts of a pair.
        mix = head.mix if head.mix != "off" else "all"
        head = dataclasses.replace(head, mix=mix, pair=store.pair and kind != "choice")
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


def assert_same(one: Any, other: Any, tolerance: float = 2e-5) -> None:
    """All arrays of two trees are near, by the largest number of the tree, 1 at most; absent ones are -inf in both."""
    scale = min(max(float(jnp.abs(jnp.where(x == -jnp.inf, 0, x)).max()) for x in jax.tree.leaves(one)), 1.0)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        absent = a == -jnp.inf
        assert (absent == (b == -jnp.inf)).all()
        a, b = jnp.where(absent, 0, a), jnp.where(absent, 0, b)
        difference = jnp.abs(a - b) / (scale + jnp.abs(a))
        assert worst([difference.max()]) <= tolerance


STEPS = [
    (case, family, seed)
    for case in CASES
    for family in MODELS
    for seed in (None, 4)
    if case != "both orders" or family.startswith("gpt")
]
QUICK = [
    ("classify", "bert", 4),
    ("tag", "gpt2", 4),
    ("span", "bert", None),
    ("both orders", "gpt", 4),
    ("tag by an LSTM on a mix", "elmo", 4),
    ("span", "vectors", 4),
]


@pytest.mark.parametrize(
    ("case", "family", "seed"), [*QUICK, *long(*(step for step in STEPS if step not in QUICK))], ids=str
)
def test_a_step_of_packed_rows_is_one_of_sequences_alone(case: str, family: str, seed: int | None, tmp_path: Path):
    """With a seed, under dropout."""
    _, model, objective, batches = opened(case, family, tmp_path)
    packed = batches.read(2)
    alone = apart(packed)
    words = "index" if family == "elmo" else "tokens"
    assert packed[words].size <= alone["mask"].size + 2 * packed["begins"].size
    params = random_parameters(model, arrays(packed), deviation=0.3)
    expected = computed(model, objective, params, arrays(alone), seed)
    assert_same(expected, computed(model, objective, params, arrays(packed), seed))


def losses(case: str, family: str, folder: Path, parts: int = 1, count: int = 1) -> list[float]:
    """Losses and norms of gradients of three steps, with dropout, in so many microbatches on so many devices."""
    folder.mkdir()
    run, model, objective, batches = opened(case, family, folder, parts, count)
    run = dataclasses.replace(run, optim=OptimConfig(accumulate=parts, warmup=1, peak_lr=1e-2))
    found = []
    with devices(count):
        mesh = meshes.build(MeshConfig())
        with meshes.use(mesh, "float32"):
            state, settings = create(model, run, mesh)[0](7), step_settings(run)
            step = train_step(model, objective, run, mesh)
            for number in range(3):
                batch = meshes.shard_batch(mesh, batches.read(number), batches.fields, 16)
                assert batch["packs"].shape[0] % (parts * count) == 0
                state, metrics = step(state, batch, settings)
                found += [float(metrics["loss"]), float(metrics["grad_norm"])]
    return found


@pytest.mark.parametrize(
    ("case", "family"),
    [
        ("classify", "bert"),
        ("pairs", "elmo"),
        *long(("choice", "gpt"), ("tag", "gpt2"), ("span", "bert"), ("choice", "elmo"), ("tag", "vectors")),
    ],
)
def test_losses_depend_on_neither_microbatches_nor_devices(case: str, family: str, tmp_path: Path):
    expected = losses(case, family, tmp_path / "one")
    for parts, count in ((2, 8),) if case in ("classify", "pairs") else ((2, 1), (1, 8), (2, 8)):
        assert losses(case, family, tmp_path / f"{parts}-{count}", parts, count) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("family", MODELS)
def test_an_example_is_blind_to_the_others_of_its_row(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The gradient of its answer with regard to the vectors of all other tokens is exactly 0."""
    run, model, objective, batches = opened("classify", family, tmp_path)
    batch = arrays(batches.read(0))
    params = random_parameters(model, batch, deviation=0.3)
    number = int(np.argmax(np.bincount(np.asarray(batch["packs"])[0])[1:]))
    # Every token gets a row of the table of its own, so that the table's gradient is the tokens'.
    name = "index" if family == "elmo" else "tokens"
    rows = batch[name].size
    own = {**batch, name: jnp.arange(rows, dtype=jnp.int32).reshape(batch[name].shape)}
    embeddings = params["backbone"]["embeddings"]
    # An ELMo's vectors come of characters, and begin and end have some too.
    table = (
        jax.random.normal(jax.random.key(0), (rows, 6))
        if family == "elmo"
        else embeddings["tokens"][batch[name].reshape(-1)]
    )
    config = model.config if family == "elmo" else dataclasses.replace(model.config, vocab=rows)

    def answer(table: jax.Array) -> jax.Array:
        monkeypatch.setattr(elmo, "_look_up", lambda words, index: table[index])
        own_tables = {} if family == "elmo" else {"tokens": table}
        backbone = {**params["backbone"], "embeddings": {**embeddings, **own_tables}}
        outputs = build(config, objective.heads, 3, run.head).apply(
            {"params": {**params, "backbone": backbone}}, own, only=("classify",)
        )
        return cast(Outputs, outputs).heads["classify"][number].sum()

    gradient = np.asarray(jax.grad(answer)(table))
    of = np.asarray(batch["packs"]).reshape(-1) == number + 1
    assert np.abs(gradient[of]).min(1).max() > 0 and (gradient[~of] == 0).all()
