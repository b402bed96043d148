"""A word costs its row of the character network once, however many devices share the rows."""

import importlib.util
import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from contexture.models.config import ElmoConfig
from contexture.models.elmo import sizes
from contexture.models.layers import char_cnn
from contexture.models.layers.char_cnn import CharCnn, chunk_sizes
from tests.conftest import ROOT
from tests.helpers.parity_rule import assert_close

CONFIG = ElmoConfig(vocab=9, char_width=4, filters=((1, 8), (3, 24)), highway=1, cells=6, projection=4, layers=1)


def _network() -> CharCnn:
    return CharCnn(sizes(CONFIG), CONFIG.filters, CONFIG.activation, CONFIG.highway, jnp.float32)


def _types(rows: int, letters: int) -> np.ndarray:
    rng = np.random.default_rng(rows)
    types = np.full((rows, 50), 261, np.int32)
    types[:, 0] = 259
    types[:, 1 : 1 + letters] = rng.integers(98, 123, (rows, letters))
    types[:, 1 + letters] = 260
    types[0] = 0
    return types


@pytest.mark.parametrize("devices", [1, 2, 8, 64, 256, 1024])
def test_the_rows_that_are_computed_are_little_more_than_the_word_types(devices: int):
    """At most a quarter more, and a row for each device; for any number of word types and any size of a part."""
    for types in (3, 64, 643, 6144, 6147, 20_003, 98_307):
        rows = -(-types // devices)
        for limit in (4, 7, 20, 56, 910, 10**6):
            parts, size = chunk_sizes(rows, limit)
            assert size <= limit and rows <= parts * size
            assert devices * parts * size <= 1.25 * types + devices, (types, limit)


@pytest.mark.long
def test_devices_share_the_rows_of_any_table(monkeypatch: pytest.MonkeyPatch):
    """Eight devices, and a table that they do not divide: each computes its eighth; the words, and the gradients, are
    those of one device."""
    monkeypatch.setattr(char_cnn, "MAX_CONV_FLOATS", 14 * 32 * 5)  # chunks of five rows
    network, types = _network(), _types(83, 9)
    params: Any = jax.device_get(network.init(jax.random.key(0), types))
    mesh = jax.make_mesh((4, 2, 1), ("data", "fsdp", "tensor"), devices=jax.devices()[:8],
                         axis_types=(AxisType.Auto,) * 3)  # fmt: skip

    def total(params: Any, types: Any) -> Any:
        words_RJ: Any = network.apply(params, types)
        return jnp.square(words_RJ).sum(), words_RJ

    alone = jax.jit(jax.value_and_grad(total, has_aux=True))
    shared = jax.jit(jax.value_and_grad(total, has_aux=True))
    expected = jax.device_get(alone(params, types))
    with jax.set_mesh(mesh):
        actual = jax.device_get(shared(params, types))
        text = jax.jit(network.apply).lower(params, types).compile().as_text()
    assert actual[0][1].shape == (83, 4)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())
    rows = -(-83 // 8)
    parts, size = chunk_sizes(rows, 5)
    assert (parts, size) == (3, 4)
    assert text is not None
    products = {int(rows) for rows in re.findall(r"f32\[(\d+),32\]\S* (?:dot|custom-call|fusion)\(", text)}
    assert size * 14 in products and max(products) <= size * 50


@pytest.mark.long
def test_the_gradient_compiles_for_a_gpu_without_flags():
    """The compiler found no tiles for products whose rows are words and positions."""
    if importlib.util.find_spec("jax_plugins") is None or importlib.util.find_spec("jax_plugins.xla_cuda13") is None:
        pytest.skip("needs the compiler for h200: pip install '.[plan-gpu]'")
    command = [sys.executable, "-m", "tests.helpers.compile.char_cnn"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "compiled" in done.stdout, done.stderr[-3000:]
