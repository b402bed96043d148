"""Multiple choice in every family: questions of different numbers of alternatives, from loss to command line."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import contexture
from contexture.data.config import DataConfig
from contexture.data.packing import apart
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.read.examples import ChoiceExample, Example
from contexture.data.tasks.store.example_store import ExampleSplit
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, HeadConfig
from contexture.models.families import build
from contexture.models.model import Outputs
from contexture.train import mesh as meshes
from contexture.train.evaluation.evaluate import evaluate
from contexture.train.objectives import OBJECTIVES, WithLmLoss, WithMixPenalty, loss
from contexture.train.settings.sections import MeshConfig
from contexture.train.step import evaluation_step
from tests.data.tasks.batch.test_gpt_layout import LETTERS, WORDS, split_of
from tests.data.tasks.batch.test_varying_alternatives import OPEN, words_of
from tests.helpers.commands import devices, done, json_of, run_command
from tests.helpers.jobs import evaluate_in_two_processes
from tests.helpers.long import long
from tests.helpers.random_runs import random_parameters

GOLDEN = Path(__file__).parents[2] / "golden"
SIZES: dict[str, Any] = {"vocab": 32, "length": 16, "layers": 2, "hidden": 16, "heads": 2, "ffn": 16}
ELMO = ElmoConfig(vocab=4, char_width=3, filters=((1, 4), (2, 4)), highway=1, cells=6, projection=4, layers=1)
ONE_EACH = ("labels", "weights", "valid")
"""Fields that an example has one of, however many alternatives it has."""
CASES: dict[str, tuple[str, Any, HeadConfig]] = {
    "bert": ("bert", BertConfig(**SIZES), HeadConfig()),
    "bert on a mix": ("bert", BertConfig(**SIZES), HeadConfig(mix="all", mix_norm=True, mix_l2=0.1)),
    "gpt": ("gpt", GptConfig(**SIZES), HeadConfig()),
    "elmo": ("elmo", ELMO, HeadConfig(mix="all", cells=5, mix_norm=True, mix_l2=0.1)),
}
TOKENIZERS = {"bert": WORDS, "gpt": LETTERS, "elmo": OPEN}
LETTERS_OF = {"bert": [f"w{n}" for n in range(1, 9)], "gpt": list("bcdefgh"), "elmo": ["the", "cat", "sat", "on", "up"]}


def questions_of(family: str, count: int = 13) -> list[Example]:
    """Questions of two to five alternatives; a prime number of them."""
    rng, words = np.random.default_rng(0), LETTERS_OF[family]

    def text() -> str:
        return " ".join(rng.choice(words, rng.integers(1, 4)))

    def alternatives(most: int) -> tuple[str, ...]:
        # All differ: which of two equal ones is better is a matter of rounding.
        found = dict.fromkeys([text()])
        while len(found) < most:
            found[text()] = None
        return (*found,)

    several = [2 + n % 4 for n in range(count)]
    return [
        ChoiceExample(text(), alternatives(most), str(rng.integers(most)), f"f:{n}") for n, most in enumerate(several)
    ]


def split_in(family: str, items: list[Example]) -> ExampleSplit:
    most = max(len(item.choices) for item in items if isinstance(item, ChoiceExample))
    names = tuple(map(str, range(most)))
    return words_of(items) if family == "elmo" else split_of(items, "choice", TOKENIZERS[family], names)


def held_out_of(family: str, items: list[Example], batch: int) -> HeldOutTask:
    config = DataConfig(batch=batch, length=16, word_types=32)
    return HeldOutTask(split_in(family, items), TOKENIZERS[family], config, batch, family=family)  # pyright: ignore[reportArgumentType]


def made(case: str) -> tuple[str, Any, Any, Any]:
    """(family, model, objective, drawn parameters), large enough to matter."""
    family, config, head = CASES[case]
    objective: Any = OBJECTIVES["choice"]
    objective = WithLmLoss(objective, 0.5) if family == "gpt" else objective
    objective = WithMixPenalty(objective, head.mix_l2) if head.mix_l2 else objective
    model = build(config, objective.heads, 5, head)
    batch = held_out_of(family, questions_of(family, 5), 5).read(0)
    batch = {name: jnp.asarray(x) for name, x in batch.items()}
    return family, model, objective, random_parameters(model, batch, deviation=0.2)


def scores(model: Any, objective: Any, params: Any, batch: dict[str, np.ndarray]) -> np.ndarray:
    outputs = jax.jit(model.apply)({"params": params}, {name: jnp.asarray(x) for name, x in batch.items()})
    return np.asarray(objective.predictions(outputs)["scores"])


@pytest.mark.parametrize("case", ["bert", *long("gpt", "elmo")])
def test_a_question_has_the_probabilities_that_it_has_alone(case: str):
    """Beside questions with more alternatives too. (A norm over the batch sees all of its words: left out here.)"""
    family, model, objective, params = made(case)
    if family == "elmo":
        model = build(ELMO, ("choice",), 5, HeadConfig(mix="all", cells=5))
    items = questions_of(family, 4)[::3]  # of two alternatives and of five
    together = scores(model, objective, params, held_out_of(family, items, 2).read(0))
    for row, item in enumerate(items):
        assert isinstance(item, ChoiceExample)
        count = len(item.choices)
        alone = scores(model, objective, params, held_out_of(family, [item], 1).read(0))
        assert alone.shape == (1, count) and alone.sum() == pytest.approx(1.0, abs=1e-6)
        assert np.abs(together[row, :count] - alone[0]).max() <= 1e-6
        assert (together[row, count:] == 0).all()
    assert together.std() > 1e-3


@pytest.mark.parametrize(
    "case", [case if case == "bert on a mix" else pytest.param(case, marks=pytest.mark.long) for case in CASES]
)
def test_absent_alternatives_change_neither_loss_nor_gradient(case: str):
    """Nor any metric; whatever stands in their rows."""
    family, model, objective, params = made(case)
    batch = held_out_of(family, questions_of(family, 5), 5).read(0)
    # A row for each sequence, so that all have the letter A.
    alone = apart(batch)
    rng, wider = np.random.default_rng(2), dict(alone)
    for name, array in alone.items():
        if array.shape[:2] == batch["choices"].shape:
            # Three more alternatives, of which there is nothing: copies of others, but for what marks and weighs them.
            more = array[:, rng.integers(0, array.shape[1], 3)]
            wider[name] = np.concatenate([array, more * (name not in ("choices", "next_weights"))], 1)
    assert {name for name in wider if wider[name] is not alone[name]} == {*alone} - {"types", *ONE_EACH}
    assert wider["choices"].shape == (5, 8)

    def total(params: Any, arrays: dict[str, np.ndarray]) -> Any:
        fields = {name: jnp.asarray(x) for name, x in arrays.items()}
        outputs = model.apply({"params": params}, fields)
        assert isinstance(outputs, Outputs)
        sums = objective.sums(outputs, fields)
        return loss(objective, sums, objective.weights(fields)), sums

    of_both = jax.jit(jax.value_and_grad(total, has_aux=True))
    (expected, sums), gradient = of_both(params, batch)
    (actual, others), gradients = of_both(params, wider)
    assert float(actual) == pytest.approx(float(expected), rel=1e-6) and np.isfinite(float(expected))
    for name, one in sums.items():
        assert float(others[name].total) == pytest.approx(float(one.total), rel=1e-5, abs=1e-6), name
        assert float(others[name].weight) == pytest.approx(float(one.weight), rel=1e-6), name
    scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradient))
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(gradients), strict=True):
        # By the scale of the whole gradient: some tensors' gradients are nearly zero, sums of terms that are not.
        assert jnp.abs(other - one).max() <= 1e-5 * scale


@pytest.mark.parametrize("family", ["gpt", *long("bert", "elmo")])
def test_figures_do_not_depend_on_devices_and_batches(family: str):
    """13 questions of two to five alternatives; 1 device and 8, batches of 1 and of 64."""
    _, model, objective, params = made(family)
    if family == "elmo":
        model = build(ELMO, ("choice",), 5, HeadConfig(mix="all", cells=5))
    figures, predicted = [], []
    for count, batch in ((1, 64), (1, 1), (8, 8)):
        held_out = held_out_of(family, questions_of(family), batch)
        with devices(count):
            mesh = meshes.build(MeshConfig())
            with meshes.use(mesh, "float32"):
                step = evaluation_step(model, objective, mesh)
                metrics, collector = evaluate(step, objective, params, held_out, mesh)
        assert collector is not None
        figures.append(metrics)
        predicted.append(collector._numbers()[1].tolist())  # type: ignore[union-attr]
    assert {"loss", "choice_loss", "accuracy", "f1_macro"} <= figures[0].keys()
    for other, answers in zip(figures[1:], predicted[1:], strict=True):
        assert other == pytest.approx(figures[0], rel=1e-6, abs=1e-6) and answers == predicted[0]


# The command line

RULES = {"in spring": ("sees", "paints"), "at night": ("likes", "follows")}


def write(path: Path, count: int) -> str:
    """Questions in the small corpus's words: when it is says what is done, two things of four."""
    rng = np.random.default_rng(count)
    who = ["the cat", "a small dog", "one old man", "the queen", "my brother"]
    rows = []
    for number in range(count):
        when, other = rng.permutation(list(RULES))
        right, people = int(rng.integers(2 + number % 4)), rng.permutation(who)[: 2 + number % 4]
        choices = [f"{one} {rng.choice(RULES[when if place == right else other])} the sea"
                   for place, one in enumerate(people)]  # fmt: skip
        rows.append({"text": f"{rng.choice(who)} sings {when}", "label": right, "choices": choices})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def words_for(source: Path, train: str, folder: Path, *more: object) -> list[object]:
    return ["finetune", source, "--task.kind", "choice", "--task.train", train, "--dir", folder, "--data.batch", 8,
            *more]  # fmt: skip


@pytest.mark.long
def test_an_elmo_is_trained_evaluated_and_asked(elmo_run: Path, tmp_path: Path, capsys):
    train, dev = write(tmp_path / "train.jsonl", 20), write(tmp_path / "dev.jsonl", 11)
    run, to = tmp_path / "run", tmp_path / "answers.jsonl"
    with devices(1):
        small = ("--steps", 2, "--head.cells", 4, "--task.dev", dev)
        done(*words_for(elmo_run, train, run, *small))
        assert "the right one of" in capsys.readouterr().err
        assert json_of("evaluate", run, "--to", tmp_path / "e")["examples"] == 11
        done("predict", run, "--input", dev, "--to", to)
        records = [json.loads(line) for line in to.read_text("utf-8").splitlines()]
        assert [len(record["scores"]) for record in records] == [len(record["choices"]) for record in records]
        more = records[3]["choices"] + ["the queen likes the sea"]
        assert len(json_of("predict", run, "--text", "the queen", "--choices", *more)["scores"]) == 6
        for choices, message in (
            (["a"], "text:0: 1 alternative; give at least two to choose from"),
            ([], "chooses among alternatives; give them as --choices A B"),
        ):
            words = ["--choices", *choices] if choices else []
            code, err = run_command(capsys, "predict", run, "--text", "the queen", *words)
            assert code == 2 and message in err.splitlines()[-1], err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["a", "b"], "label": 2}, "train.jsonl:1: label '2' is neither one of 0, 1 nor an alternative's"),
        ({"choices": ["a"], "label": 0}, "train.jsonl:1: the alternatives (column 'choices') are 1; give at least two"),
    ],
)
def test_too_few_alternatives_are_one_clear_line(tmp_path: Path, capsys, row, message):
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({"text": "the cat", **row}) + "\n")
    with devices(1):
        code, err = run_command(capsys, *words_for(GOLDEN / "bert", str(file), tmp_path / "run", "--steps", 1))
    assert code == 2 and message in err.splitlines()[-1], err


STEPS = {
    "bert": (400, "--data.length 24 --lr 3e-3 --model.attention-dropout 0"),
    "gpt": (600, "--lr 3e-3 --model.attention-dropout 0 --data.length 64"),
    "elmo": (400, "--data.length 24 --lr 1e-2 --head.cells 32 --data.word-types 128"),
}
PLAIN = "--optim.name adamw --optim.schedule linear --optim.eps 1e-8 --optim.frozen --data.batch 16 --model.dropout 0"


@pytest.mark.long
@pytest.mark.parametrize("family", STEPS)
def test_64_questions_are_learned(family: str, tmp_path: Path, request, door):
    """Through the whole road, and the figures of any devices and batches are the same."""
    source = request.getfixturevalue("tiny_run" if family == "bert" else f"{family}_run")
    train, dev = write(tmp_path / "train.jsonl", 64), write(tmp_path / "dev.jsonl", 29)
    steps, more = STEPS[family]
    run = tmp_path / "run"
    with devices(1):
        learning = [*PLAIN.split(), *more.split(), "--model.head-dropout", "0", "--evaluate.every", steps]
        done(*words_for(source, train, run, "--steps", steps, "--task.dev", dev, *learning))
        learned = contexture.evaluate(run, split="train", to=str(tmp_path / "e"))
        assert learned["examples"] == 64 and learned["metrics"]["accuracy"] >= 0.95, learned["metrics"]
        figures = [contexture.evaluate(run, batch=batch, to=str(tmp_path / f"{batch}"))["metrics"] for batch in (1, 64)]
    with devices(8):
        figures.append(contexture.evaluate(run, batch=8, to=str(tmp_path / "8"))["metrics"])
    for batch in (1, 64):
        figures.append(evaluate_in_two_processes(door, run, batch, tmp_path / f"two{batch}")["metrics"])
    for other in figures[1:]:
        # The language model's weights, 1/length each, are summed in float32: in another order by other devices.
        for name, value in figures[0].items():
            assert other[name] == pytest.approx(value, abs=1e-5 if name.startswith("lm_") else 1e-6), name
