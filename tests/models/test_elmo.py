"""ELMo's laws: what each direction may know, what is carried, what padding may change."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.data.config import DataConfig
from contexture.data.layouts import elmo_lines
from contexture.data.packing import in_rows, pack
from contexture.data.pretraining.bilm_lanes import FIELDS, HeldOutLanes, LaneBatches
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.elmo_char_ids import words_from_char_ids
from contexture.data.tokenizers.word_level import SPECIAL, Words
from contexture.models.config import ElmoConfig
from contexture.models.elmo import DIRECTIONS, sizes
from contexture.models.families import build, example
from contexture.models.layers.char_cnn import CharCnn
from contexture.train import mesh as meshes
from contexture.train.objectives import OBJECTIVES, means
from contexture.train.optim.optimizers import optimizer
from contexture.train.programs import step_settings
from contexture.train.run.report import read_metrics
from contexture.train.settings.run import Run
from contexture.train.settings.sections import MeshConfig, OptimConfig
from contexture.train.step import State, create, evaluation_step, train_step
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, assert_differs, close

CONFIG = ElmoConfig(
    vocab=60, char_width=4, filters=((1, 4), (2, 4)), activation="tanh", highway=1, cells=8, projection=6, dropout=0.2
)
B, L = 4, 5
LINES = [["no", "two", "of", "these", "are", "alike"], ["one"], [], ["a", "line", "of", "words", "of", "its", "own"]]


def drawn(tree: Any, seed: int = 1) -> Any:
    """The same tree with numbers that are large enough to matter."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: (0.5 * rng.standard_normal(x.shape)).astype(np.float32), tree)


@pytest.fixture(scope="module")
def params() -> Any:
    line = example(FIELDS, {"B": 1, "L": 2, "R": 4, "W": 50})
    return drawn(jax.eval_shape(lambda: build(CONFIG, ("bilm",)).init(jax.random.key(0), line)["params"]))


@partial(jax.jit, static_argnums=0)
def _apply(config: ElmoConfig, params: Any, batch: Any, carry: Any) -> Any:
    model = build(config, ("bilm",) if "next" in batch else ())
    params = params if "next" in batch else {"backbone": params["backbone"]}
    return model.apply({"params": params, "carry": carry}, batch, states=True, mutable=["carry"])


def run(params: Any, batch: Any, carry: Any = None, **more: Any) -> tuple[Any, Any]:
    """(outputs, what is carried on), without dropout."""
    outputs, left = _apply(dataclasses.replace(CONFIG, **more), params, batch, carry or {})
    return outputs, left.get("carry", {})


def layers(outputs: Any) -> np.ndarray:
    """Every layer [layers, B, L, D]."""
    return np.stack(outputs.encoding.states)


def lanes_config(**more: Any) -> DataConfig:
    usual = {"vocabulary": "words", "split_sentences": False, "negatives": 0}
    return DataConfig(**{**usual, "batch": B, "length": L, "word_types": 64, **more})


@pytest.fixture(scope="module")
def text() -> list[list[str]]:
    """Sentences in which every word is another one: 47 words, their ends counted 57."""
    words = (f"{letter}{number}" for number in "12" for letter in "abcdefghijklmnopqrstuvwxyz")
    return [[next(words) for _ in range(n)] for n in (3, 7, 1, 4, 9, 2, 6, 5, 8, 2)]


@pytest.fixture(scope="module")
def shards(text: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("lanes")
    (folder / "text.txt").write_text("\n".join(" ".join(words) for words in text), "utf-8")
    (folder / "dev.txt").write_text("a1 b1 c1\nd1 other\n" * 9, "utf-8")
    config = lanes_config(path=(str(folder / "text.txt"),), dev=(str(folder / "dev.txt"),))
    return prepare(config, Words([*SPECIAL, *sum(text, [])]), folder / "shards", stream="lanes")


@pytest.fixture(scope="module")
def batches(shards: Shards) -> LaneBatches:
    return LaneBatches(shards, lanes_config(), seed=0)


# What a direction may know


def through(params: Any, steps: list[Any]) -> dict[str, np.ndarray]:
    """What each direction has at each place that its lanes come to: its hidden state, and how well it predicts the
    next word, [B, steps · L, J + 1]."""
    carry, results = {}, {name: [] for name in DIRECTIONS}
    for batch in steps:
        outputs, carry = run(params, batch, carry)
        for name, half in zip(DIRECTIONS, np.split(np.asarray(outputs.encoding.hidden_BLD), 2, -1), strict=True):
            loss_BL = np.asarray(outputs.heads["bilm"][name].loss_BL)
            results[name].append(np.concatenate([half, loss_BL[:, :, None]], -1))
    return {name: np.concatenate(parts, 1) for name, parts in results.items()}


def test_no_direction_sees_a_word_on_the_side_that_it_predicts(params, text, batches):
    """One word of the text is spelled in another way, wherever it is read; each in turn. Forward, the lanes that have
    come to its place in the text change from there on, backward likewise: bit for bit nothing else, and all of that."""
    steps = [batches.read(step) for step in range(4)]
    circle = [word for words in text for word in (*words, "")]
    N, share, gone = len(circle), len(circle) // B, np.arange(4 * L)[None]
    assert share < 4 * L  # the lanes go on into the next one's part
    at = np.arange(B)[:, None] * share + gone
    place = {"forward": at % N, "backward": (N - 1 - at) % N}
    for name, suffix, ahead in zip(DIRECTIONS, ("", "_backward"), (1, -1), strict=True):
        read = [
            words_from_char_ids(step["types"][row])
            for b in range(B)
            for step in steps
            for row in step["index" + suffix][b, None]
        ]
        words = [word if "<" not in word and "/" not in word else "" for line in read for word in line]
        assert words == [circle[p] for p in place[name].ravel()]
        after = np.concatenate([step["next" + suffix] for step in steps], 1).ravel()
        predicted = [circle[(p + ahead) % N] for p in place[name].ravel()]
        assert [batches.tokenizer.token(i) for i in after if i > 2] == [word for word in predicted if word]
    before = through(params, steps)
    for q, word in enumerate(circle):
        if word:
            after = through(params, [spelled_otherwise(step, word) for step in steps])
            for name in DIRECTIONS:
                passed = np.logical_or.accumulate(place[name] == q, 1)
                changed = (np.abs(before[name] - after[name]) > 0).any(-1)
                assert np.array_equal(changed, passed), (word, name)


def spelled_otherwise(batch: Any, word: str) -> Any:
    """A batch in which a word begins with a capital letter."""
    types = batch["types"].copy()
    types[[spelling == word for spelling in words_from_char_ids(types)], 1] -= 32
    return {**batch, "types": types}


@pytest.mark.long
def test_no_gradient_comes_from_the_side_that_is_predicted():
    """Each place has a word of one byte of its own, whose row of the table of characters no other place reads."""
    words = list("abcdefgh")
    batch, config = elmo_lines([words]), dataclasses.replace(CONFIG, filters=((1, 16), (1, 16), (2, 16)))
    model = build(config)
    backbone = drawn(jax.eval_shape(lambda: model.init(jax.random.key(0), batch)["params"]["backbone"]))
    mix = np.random.default_rng(0).standard_normal(CONFIG.projection).astype(np.float32)

    def hidden(table: jax.Array) -> list[jax.Array]:
        embeddings = {**backbone["embeddings"], "characters": table}
        outputs: Any = model.apply({"params": {"backbone": {**backbone, "embeddings": embeddings}}}, batch)
        return [half[0, : len(words)] @ mix for half in jnp.split(outputs.encoding.hidden_BLD, 2, -1)]

    jacobians = jax.jit(jax.jacrev(hidden))(backbone["embeddings"]["characters"])
    forward, backward = (np.abs(np.asarray(x))[:, [ord(word) for word in words]].max(-1) for x in jacobians)
    reads = np.tri(len(words), dtype=bool)
    assert (forward[reads] > 0).all() and (forward[~reads] == 0).all()
    assert (backward[reads.T] > 0).all() and (backward[~reads.T] == 0).all()


# Padding


@pytest.mark.parametrize(
    "names", [("behind the end", "no word's"), *long((("columns", "rows", "types"),))], ids=["the same", "more"]
)
def test_padding_changes_nothing(params, names):
    """What stands behind a line's end, in lines that only fill up, and in rows that no word has: bit for bit. More of
    each makes another program, whose sums are rounded otherwise."""
    plain = elmo_lines(LINES, 6)
    index, mask, types = plain["index"], plain["mask"], plain["types"]
    rng, used = np.random.default_rng(0), index.max() + 1
    noisy = np.where(mask, index, rng.integers(0, len(types), index.shape)).astype(np.int32)
    spelled_so = np.concatenate([types[:used], rng.integers(0, 262, types[used:].shape, np.int32)])
    expected = run(params, plain)[0]
    longer = {"index": np.pad(noisy, [(0, 0), (0, 9)]), "mask": np.pad(mask, [(0, 0), (0, 9)])}
    others = {
        "behind the end": ({"index": noisy}, 0.0),
        "no word's": ({"types": spelled_so}, 0.0),
        "columns": (longer, 1e-6),
        "rows": ({"index": np.pad(noisy, [(0, 3), (0, 0)]), "mask": np.pad(mask, [(0, 3), (0, 0)])}, 1e-6),
        "types": ({"types": np.pad(types, [(0, 40), (0, 0)], constant_values=7)}, 1e-6),
    }
    for name, (more, atol) in ((name, others[name]) for name in names):
        got = run(params, {**plain, **more})[0]
        for row, words in enumerate(LINES):
            inside = (slice(None), row, slice(len(words)))
            if words:
                assert_close(layers(got)[inside], layers(expected)[inside], 0, atol, err_msg=name)
        assert_close(got.encoding.pooled_BD[:6], expected.encoding.pooled_BD, 0, atol, err_msg=name)
    assert not expected.encoding.pooled_BD[LINES.index([])].any()


def test_sentences_in_lanes_are_those_with_a_row_each(params):
    """Every layer, and the mean over the words; also of a sentence without words."""
    plain = elmo_lines(LINES, 6)
    expected = run(params, plain)[0]
    lengths = plain["mask"].sum(1).astype(np.int64) + 2
    packed = in_rows(plain, pack(lengths, 12, ()), 8)
    assert len(packed["index"]) < len(LINES)
    got = run(params, packed)[0]
    assert_close(got.encoding.mask_BL[:6], plain["mask"], 0, 0)
    inside = plain["mask"] > 0
    assert_close(layers(got)[:, :6][:, inside], layers(expected)[:, inside], 0, 1e-6)
    assert_close(got.encoding.pooled_BD[:6], expected.encoding.pooled_BD, 0, 1e-6)


def test_words_may_be_cut_where_padding_follows():
    types = elmo_lines([["short", "words", "alone"]])["types"][:6]
    filters = ((1, 3), (3, 4), (5, 2))
    module = CharCnn(sizes(dataclasses.replace(CONFIG, filters=filters)), filters, "relu", 1, jnp.float32)
    weights = drawn(jax.eval_shape(module.init, jax.random.key(0), types))
    longest = len("short") + 2
    apply = jax.jit(module.apply)
    whole, shorter = (np.asarray(apply(weights, t)) for t in (types, types[:, : longest + 5]))
    assert np.array_equal(shorter, whole)
    assert_differs(apply(weights, types[:, : longest - 1]), whole)


# What is carried


def test_a_sentence_is_encoded_alone_unless_asked_for(params):
    batch, other = elmo_lines(LINES), elmo_lines([*LINES[::-1]])
    first, carry = run(params, other)
    assert not carry
    alone = layers(run(params, batch, carry)[0])
    assert np.array_equal(alone, layers(run(params, batch)[0]))
    initial, carry = run(params, other, stateful=True)
    near(layers(initial), layers(first))
    assert carry
    after = layers(run(params, batch, carry, stateful=True)[0])
    inside = batch["mask"].astype(bool)
    near(after[0], alone[0])
    assert (np.abs(after[1:, inside] - alone[1:, inside]) > 1e-6).any(-1).all()


@pytest.mark.long
def test_the_first_batch_of_a_stateful_model_is_that_of_a_stateless_one(params):
    """Two programs, compiled as users compile them."""
    stateful, carry = run(params, elmo_lines(LINES), stateful=True)
    assert np.array_equal(layers(stateful), layers(run(params, elmo_lines(LINES))[0])) and carry


def test_what_is_carried_is_the_state_at_each_lines_end(params):
    """Of a line that is padded it is the state behind its own last word."""
    _, together = run(params, elmo_lines(LINES), stateful=True)
    for row, words in enumerate(LINES):
        _, alone = run(params, elmo_lines([words]), stateful=True)
        near(jax.tree.map(lambda x, row=row: x[row : row + 1], together), alone)


def test_two_steps_of_a_lane_are_one_of_twice_the_length(params, shards, batches):
    whole, carry = run(params, LaneBatches(shards, lanes_config(length=2 * L), seed=0).read(0))
    results, carried = [], None
    for step in range(2):
        outputs, carried = run(params, batches.read(step), carried)
        results.append(layers(outputs))
    near((np.concatenate(results, 2), carried), (layers(whole), carry))


# The step

RUN = Run(
    model=CONFIG,
    data=lanes_config(negatives=16),
    optim=OptimConfig(
        name="adagrad", schedule="linear", peak_lr=0.2, warmup=0, final_lr=1.0, weight_decay=0.0, clip=10.0,
        gradient_scale=20.0,
    ),
    steps=10,
)  # fmt: skip


class Trained:
    """Three steps on the lanes, dropout on, from the same parameters."""

    def __init__(self, shards: Shards, params: Any) -> None:
        self.shards, self.mesh, self.objective = (
            shards,
            meshes.build(MeshConfig(), jax.devices()[:1]),
            OBJECTIVES["bilm"],
        )
        self.steps: dict[tuple[int, int], Any] = {}
        with jax.set_mesh(self.mesh):
            _, shapes, self.shardings = create(build(CONFIG, self.objective.heads), RUN, self.mesh)
        zero, carry = jnp.zeros((), jnp.int32), jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes.carry)
        self.fresh = jax.device_get(State(zero, params, optimizer(RUN.optim).init(params), zero, zero, carry))

    def step(self, accumulate: int = 1, negatives: int = 16) -> tuple[Any, LaneBatches]:
        optim = dataclasses.replace(RUN.optim, accumulate=accumulate)
        run = dataclasses.replace(RUN, data=lanes_config(negatives=negatives), optim=optim)
        if (accumulate, negatives) not in self.steps:
            model = build(CONFIG, self.objective.heads)
            self.steps[accumulate, negatives] = train_step(model, self.objective, run, self.mesh)
        return self.steps[accumulate, negatives], LaneBatches(self.shards, run.data, seed=3)

    def __call__(
        self, accumulate: int = 1, poison: int = -1, given: list[Any] | None = None
    ) -> tuple[list[Any], list[Any]]:
        """(the metrics of each step, the states before, between and behind them); poison: the step where a weight is no
        number; given: the states to start each step from, if not where the one before has ended."""
        step, batches = self.step(accumulate)
        metrics, states = [], [self.fresh]
        with jax.set_mesh(self.mesh):
            for number in range(3):
                batch = batches.read(number)
                if number == poison:
                    batch["next_weights"][1, 2] = np.nan
                start = jax.device_put(given[number] if given else states[-1], self.shardings)
                sharded = meshes.shard_batch(self.mesh, batch, batches.fields, B)
                next_state = jax.device_get(step(start, sharded, step_settings(RUN)))
                states.append(next_state[0])
                metrics.append(next_state[1])
        return metrics, states


@pytest.fixture(scope="module")
def trained(shards: Shards, params: Any) -> Trained:
    return Trained(shards, params)


@pytest.fixture(scope="module")
def whole(trained: Trained) -> tuple[list[Any], list[Any]]:
    return trained()


@pytest.mark.long
@pytest.mark.parametrize("parts", [*long(2), 4])
def test_a_step_in_parts_is_the_whole_step(trained, whole, parts):
    """Each part has its lanes' own masks and carry, and all of them the same negatives. Each step starts from the same
    state, since three steps in float32 carry the noise of the first on."""
    metrics, states = trained(accumulate=parts, given=whole[1])
    near(metrics, whole[0])
    for got, expected in zip(states[1:], whole[1][1:], strict=True):
        near((got.params, got.carry), (expected.params, expected.carry))


@pytest.mark.long
def test_a_skipped_step_changes_no_parameter_and_keeps_the_carry_finite(trained, whole):
    measured, states = trained(poison=1)
    assert [int(metrics["skipped"]) for metrics in measured] == [0, 1, 1]
    assert not np.isfinite(measured[1]["loss"]) and np.isfinite(measured[2]["loss"])
    before, after = states[1:3]
    same(before.params, after.params)
    same(before.opt, after.opt)
    same(after.carry, whole[1][2].carry)  # it has read the batch's words
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(states[-1]))


def near(got: Any, expected: Any) -> None:
    """Each array to a millionth of its largest number; counts are the same."""
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        if np.issubdtype(np.asarray(b).dtype, np.integer):
            assert np.array_equal(a, b), path
        else:
            close(a, b, str(path), 1e-6)


def same(got: Any, expected: Any) -> None:
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, got, expected)))


def test_a_sampled_perplexity_is_never_called_full(trained, params):
    for negatives, name, other in ((16, "sampled", "full"), (0, "full", "sampled")):
        step, batches = trained.step(negatives=negatives)
        with jax.set_mesh(trained.mesh):
            metrics = jax.eval_shape(step.jitted, trained.fresh, batches.read(0), step_settings(RUN))[1]
        assert f"{name}_perplexity" in metrics and f"{other}_perplexity" not in metrics
    held_out: Any = HeldOutLanes(trained.shards, lanes_config(negatives=16), B)
    model = build(CONFIG, trained.objective.heads)
    with jax.set_mesh(trained.mesh):
        evaluation = evaluation_step(model, trained.objective, trained.mesh)
        sums, _, carry = jax.eval_shape(lambda params: evaluation(params, held_out.read(0), None), params)
    assert "full_perplexity" in sums and "sampled_perplexity" not in sums and jax.tree.leaves(carry)


def test_the_full_perplexity_is_that_of_both_directions_losses(params, batches):
    objective, batch = OBJECTIVES["bilm"], batches.read(0)
    figures = {name: float(x) for name, x in means(objective.sums(run(params, batch)[0], batch)).items()}
    mean = (figures["forward_loss"] + figures["backward_loss"]) / 2
    assert abs(figures["forward_loss"] - figures["backward_loss"]) > 1e-2
    assert figures["full_perplexity"] == pytest.approx(np.exp(mean), rel=1e-5)


@pytest.mark.long
def test_a_runs_figures_say_which_perplexity_they_are(elmo_run):
    records = [r for r in read_metrics(elmo_run / "metrics.jsonl") if r["split"] != "goodput"]
    names = {split: set().union(*(r for r in records if r["split"] == split)) for split in ("train", "dev")}
    assert "sampled_perplexity" in names["train"] and "full_perplexity" not in names["train"]
    assert "full_perplexity" in names["dev"] and "sampled_perplexity" not in names["dev"]
    last = records[-1]
    assert last["split"] == "dev"
    assert last["full_perplexity"] == pytest.approx(
        np.exp((last["forward_loss"] + last["backward_loss"]) / 2), rel=1e-5
    )
