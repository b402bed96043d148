"""ELMo against the reference written from the original's equations: layers, losses, every gradient and what is carried.

Weights are drawn large enough to matter. The rule for each tensor is max|a - b| <= 1e-5 · max|b|, b being the
reference's in float64, so that only this side's float32 noise is left.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.interchange.name_tables import bilm
from contexture.interchange.renaming import to_ours, to_theirs
from contexture.models import elmo
from contexture.models.config import ElmoConfig
from contexture.models.families import build
from contexture.models.heads.sampled_softmax import SITE
from contexture.models.layers.dropout import dropout, dropout_key
from contexture.train.objectives import OBJECTIVES, loss
from contexture.train.optim.optimizers import optimizer
from contexture.train.settings.sections import OptimConfig
from tests.helpers.parity_rule import close

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

from tests.helpers import elmo_reference as reference  # noqa: E402

V, B, L, R = 29, 4, 6, 13
FILTERS = ((1, 3), (2, 4), (5, 6))
CONFIGS = {
    "clips that bite, skips": ElmoConfig(vocab=V, char_width=5, filters=FILTERS, cells=11, projection=7, cell_clip=0.4,
                                         projection_clip=0.15),
    "no skips, tanh, one layer": ElmoConfig(vocab=V, char_width=3, filters=FILTERS, activation="tanh", highway=1,
                                            layers=1, cells=5, projection=9, skip=False),
    "three layers, no clips": ElmoConfig(vocab=V, char_width=4, filters=FILTERS, highway=0, layers=3, cells=8,
                                         projection=6, cell_clip=0, projection_clip=0),
    "filters as wide as the projection": ElmoConfig(vocab=V, char_width=4, filters=FILTERS, cells=6, projection=13),
}  # fmt: skip


def _options(c: ElmoConfig) -> dict[str, Any]:
    clips = {"cell_clip": c.cell_clip or None, "proj_clip": c.projection_clip or None}
    return {
        "lstm": {**clips, "dim": c.cells, "projection_dim": c.projection, "n_layers": c.layers,
                 "use_skip_connections": c.skip},
        "char_cnn": {"activation": c.activation, "embedding": {"dim": c.char_width}, "filters": list(c.filters),
                     "n_highway": c.highway, "n_characters": 262, "max_characters_per_token": 50},
    }  # fmt: skip


def _table(c: ElmoConfig) -> Any:
    return bilm(c.filters, c.highway, sum(count for _, count in c.filters) != c.projection)


def _ours(c: ElmoConfig, weights: Any) -> dict[str, Any]:
    arrays = {name: x.detach().numpy().astype(np.float32) for name, x in weights.items()}
    head = {"kernel": arrays.pop("softmax/W"), "bias": arrays.pop("softmax/b")}
    return {**to_ours(_table(c), arrays, elmo.sizes(c)), "heads_bilm": head}


def _theirs(c: ElmoConfig, params: Any) -> dict[str, np.ndarray]:
    params = jax.device_get(params)
    tensors = to_theirs(_table(c), {"backbone": params["backbone"]}, elmo.sizes(c))
    return {**tensors, "softmax/W": params["heads_bilm"]["kernel"], "softmax/b": params["heads_bilm"]["bias"]}


def _near(got: Any, expected: Any, what: str) -> None:
    expected = expected.detach().numpy() if hasattr(expected, "detach") else np.asarray(expected)
    close(np.asarray(got, np.float64), expected, what)


def _types() -> np.ndarray:
    rng = np.random.default_rng(1)
    words = ["".join(map(chr, rng.integers(97, 300, n))) for n in rng.integers(1, 60, R - 3)]
    rows = [[0] * 50, *(reference.word_characters(word) for word in ("<S>", "</S>", *words))]
    return np.array(rows, np.int32)


def _lanes(seed: int, sampled: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    batch: dict[str, np.ndarray] = {"types": _types(), "valid": np.ones(B, np.float32)}
    for suffix in ("", "_backward"):
        batch["index" + suffix] = rng.integers(1, R, (B, L)).astype(np.int32)
        batch["next" + suffix] = rng.integers(0, V, (B, L)).astype(np.int32)
        batch["next_weights" + suffix] = np.ones((B, L), np.float32)
    if sampled:
        batch["negatives"] = np.stack([rng.permutation(V)[:9] for _ in range(2)]).astype(np.int32)
        batch["tries"] = np.array([14, 11], np.float32)
    return batch


@pytest.mark.parametrize("rate", [0.0, 0.3], ids=["no dropout", "dropout"])
@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "full"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_two_steps_with_what_is_carried_are_the_references(config: ElmoConfig, sampled: bool, rate: float):
    config = dataclasses.replace(config, dropout=rate)
    options, objective = _options(config), OBJECTIVES["bilm"]
    weights: Any = reference.random_weights(options, V)
    model, params = build(config, ("bilm",)), _ours(config, weights)
    carry: Any = None
    states: Any = None
    for step in range(2):
        batch = _lanes(step, sampled)
        drawn: Any = None
        if sampled:
            drawn = [(torch.from_numpy(batch["negatives"][d]).long(), int(batch["tries"][d])) for d in range(2)]
        made = dropout_key(3, jnp.int32(step), jnp.arange(B))

        def total(params: Any, carry: Any, batch: Any = batch, made: Any = made) -> Any:
            variables = {"params": params, **({"carry": carry} if carry is not None else {})}
            outputs, left = model.apply(variables, batch, made, mutable=["carry"])
            sums = objective.sums(outputs, batch)  # pyright: ignore[reportArgumentType]
            return loss(objective, sums, objective.weights(batch)), (sums, left["carry"])

        (value, (sums, carry)), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(params, carry)

        theirs = {name: x.clone().requires_grad_() for name, x in weights.items()}
        chars = torch.from_numpy(batch["types"]).long()
        streams = ("", "_backward")
        expected, parts, states = reference.training_loss(
            tuple(chars[torch.from_numpy(batch["index" + s]).long()] for s in streams),
            tuple(torch.from_numpy(batch["next" + s]).long() for s in streams),
            theirs, options, states, _masks(config, made) if rate else None, drawn,
        )  # fmt: skip
        expected.backward()
        _near(value, expected, "loss")
        for name, part in zip(("forward_loss", "backward_loss"), parts, strict=True):
            _near(sums[name].total / sums[name].weight, part, name)
        got = _theirs(config, gradient)
        assert got.keys() == theirs.keys()
        for name, x in theirs.items():
            assert x.grad is not None
            _near(got[name], x.grad, name)
        for name, of_layers in zip(elmo.DIRECTIONS, states, strict=True):
            left = carry["backbone"]["layers"][name]
            for n, (cell, hidden) in enumerate(of_layers):
                _near(left["cell"][:, n], cell, f"{name} cell {n}")
                _near(left["hidden"][:, n], hidden, f"{name} hidden {n}")


def _masks(c: ElmoConfig, made: Any) -> Any:
    """What dropout multiplies with, at the places where the original has it."""
    J, rate = c.projection, c.dropout
    out = dropout(jnp.ones((B, L, 2 * J)), rate, made, SITE)
    masks: tuple[list[Any], ...] = ([], [])
    for d in range(2):
        for n in range(c.layers):
            masks[d].append(dropout(jnp.ones((B, L, J)), rate, made, d * c.layers + n))
        masks[d].append(out[..., d * J : (d + 1) * J])
    assert 0 < sum(float((x == 0).mean()) for x in masks[0]) < len(masks[0])
    return tuple([torch.from_numpy(np.array(x, np.float64)) for x in of] for of in masks)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_sentences_are_encoded_as_by_the_reference(config: ElmoConfig):
    options, lengths = _options(config), np.array([5, 1, 3, 0])
    weights = reference.random_weights(options, V, seed=2)
    model = build(dataclasses.replace(config, stateful=True))
    params = {"backbone": _ours(config, weights)["backbone"]}
    types, rng = _types(), np.random.default_rng(5)
    variables: Any = {"params": params}
    states: Any = None
    for _ in range(2):
        index = rng.integers(3, R, (B, 5)).astype(np.int32)
        mask = (np.arange(5) < lengths[:, None]).astype(np.int32)
        chars = np.zeros((B, 7, 50), np.int64)
        for row, n in enumerate(lengths):
            chars[row, 0], chars[row, 1 : n + 1], chars[row, n + 1] = types[1], types[index[row, :n]], types[2]
        outputs, left = model.apply(variables, {"types": types, "index": index, "mask": mask}, states=True,
                                    mutable=["carry"])  # fmt: skip
        variables = {"params": params, **left}
        layers, states = reference.encode(
            torch.from_numpy(chars), torch.from_numpy(lengths + 2), weights, options, states
        )
        got: Any = outputs
        assert len(got.encoding.states) == len(layers) == config.layers + 1
        for n, (ours, theirs) in enumerate(zip(got.encoding.states, layers, strict=True)):
            inside = mask[:, :, None]
            _near(ours * inside, theirs[:, 1:6].detach().numpy() * inside, f"layer {n}")


def test_the_originals_optimizer():
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("a", (3, 4)), ("b", (5,)))}
    config = OptimConfig(
        name="adagrad", schedule="linear", peak_lr=0.2, warmup=0, final_lr=1.0, weight_decay=0.0, clip=10.0,
        gradient_scale=20.0,
    )  # fmt: skip
    tx = optimizer(config)
    state = tx.init(params)
    theirs = {name: torch.from_numpy(x).double() for name, x in params.items()}
    sums = reference.start_accumulators(theirs)
    for scale in (0.01, 3.0, 0.2):  # the second is clipped
        grads = {name: scale * rng.standard_normal(x.shape).astype(np.float32) for name, x in params.items()}
        updates: Any
        updates, state = tx.update(grads, state, params)
        params = {name: x - 0.2 * updates[name] for name, x in params.items()}
        theirs, sums = reference.adagrad_step(
            theirs, {name: torch.from_numpy(x).double() for name, x in grads.items()}, sums
        )
        for name, x in params.items():
            _near(x, theirs[name], name)
