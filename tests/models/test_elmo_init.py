"""What an ELMo's parameters are drawn from (bilm-tf, training.py): every one of them, by its statistics."""

import dataclasses
import math
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from contexture.models.config import ElmoConfig
from contexture.models.families import build, example
from contexture.models.shapes import by_path
from contexture.train.objectives import OBJECTIVES, batch_fields, batch_sizes
from contexture.train.settings.run import Run
from tests.helpers.long import long

CONFIG = ElmoConfig(vocab=1500, filters=((1, 40), (3, 60)), highway=2, cells=96, projection=24)
F, J, U = 100, 24, 96
UNIFORM, NORMAL, CONSTANT = "uniform", "normal", "constant"


@cache
def _born(config: ElmoConfig, under: str = "") -> dict[str, np.ndarray]:
    """Path → what is drawn, of the paths that begin so."""
    from contexture.configs import recipe

    run: Run = dataclasses.replace(recipe("elmo.tiny"), model=config)
    batch = example(batch_fields(run), batch_sizes(run, 1))

    @jax.jit
    def drawn(key: jax.Array) -> dict[str, jax.Array]:
        params = by_path(build(config, OBJECTIVES["bilm"].heads).init(key, batch)["params"])
        return {path: x for path, x in params.items() if path.startswith(under)}

    return {path: np.asarray(x, np.float64) for path, x in drawn(jax.random.key(0)).items()}


def _table(activation: str) -> dict[str, tuple[str, float]]:
    """Path → (distribution around 0, its reach or deviation), or a constant."""
    words, layers = "backbone/embeddings", "backbone/layers"
    filters = {"relu": lambda width: (UNIFORM, 0.05), "tanh": lambda width: (NORMAL, 1 / math.sqrt(16 * width))}
    table: dict[str, tuple[str, float]] = {f"{words}/characters": (UNIFORM, 1.0)}
    for n, (width, _) in enumerate(CONFIG.filters):
        table |= {f"{words}/filters_{n}/kernel": filters[activation](width), f"{words}/filters_{n}/bias": (CONSTANT, 0)}
    for n in range(CONFIG.highway):
        for part, bias in (("carry", -2.0), ("transform", 0.0)):
            place = f"{words}/highway_{n}/{part}"
            table |= {f"{place}/kernel": (NORMAL, 1 / math.sqrt(F)), f"{place}/bias": (CONSTANT, bias)}
    table |= {f"{words}/projection/kernel": (NORMAL, 1 / math.sqrt(F)), f"{words}/projection/bias": (CONSTANT, 0)}
    for way in ("forward", "backward"):  # Glorot over [x, h] and the four gates; the forget gate's 1 is no parameter
        table |= {
            f"{layers}/{way}/kernel": (UNIFORM, math.sqrt(6 / (2 * J + 4 * U))),
            f"{layers}/{way}/bias": (CONSTANT, 0),
            f"{layers}/{way}/projection": (UNIFORM, math.sqrt(6 / (U + J))),
        }
    return table | {"heads_bilm/kernel": (NORMAL, 1 / math.sqrt(J)), "heads_bilm/bias": (CONSTANT, 0)}


@pytest.mark.parametrize(
    ("activation", "under"), [("relu", ""), ("tanh", "backbone/embeddings/filters"), *long(("tanh", ""))]
)
def test_every_parameter_is_drawn_as_the_original_draws_it(activation, under):
    born = _born(dataclasses.replace(CONFIG, activation=activation), under)
    table = {path: how for path, how in _table(activation).items() if path.startswith(under)}
    assert born.keys() == table.keys()
    for path, (kind, size) in table.items():
        x = born[path]
        if kind == CONSTANT:
            assert (x == size).all(), path
            continue
        deviation = size / math.sqrt(3) if kind == UNIFORM else size
        assert x.std() == pytest.approx(deviation, rel=5 / math.sqrt(2 * x.size)), path
        assert abs(x.mean()) < 5 * deviation / math.sqrt(x.size), path
        largest = np.abs(x).max() / size
        assert (0.98 < largest <= 1.0 + 1e-6) if kind == UNIFORM else 2.2 < largest < 7, (path, largest)


def test_directions_layers_and_halves_are_drawn_apart():
    born: dict[str, Any] = _born(dataclasses.replace(CONFIG, activation="relu"))
    forward, backward = (born[f"backbone/layers/{way}/kernel"] for way in ("forward", "backward"))
    pairs = ((forward[0], backward[0]), (forward[0], forward[1]), (forward[0, 0], forward[0, 1]))
    for a, b in pairs:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / math.sqrt(a.size)
