"""What a GPU or a TPU computes in another way than a CPU is the same: the ways of others are taken here."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.models.heads import linear_head
from contexture.models.heads.chunked_softmax import next_token_loss
from contexture.models.heads.linear_head import logits_over_vocabulary, missing_words
from contexture.models.layers import blocks, char_cnn
from contexture.models.layers.blocks import Linear, fused_projections, normalise
from contexture.train import mesh as meshes
from contexture.train.settings.sections import MeshConfig
from tests.helpers.parity_rule import close


def _drawn(*shapes: tuple[int, ...]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def _same_elsewhere(monkeypatch, module: Any, platform: str, function: Any, *arrays: jax.Array) -> None:
    def computed() -> Any:
        y, pull = jax.vjp(function, *arrays)
        return y, pull(jnp.cos(y))

    here = computed()
    monkeypatch.setattr(module, "platform", lambda: platform)
    jax.tree.map(lambda a, b: close(a, b), computed(), here)


@pytest.mark.parametrize("words", [1, 61, 128, 129])
def test_a_gpu_has_whole_tiles_of_words(monkeypatch, words):
    monkeypatch.setattr(linear_head, "platform", lambda: "gpu")
    assert (words + missing_words(words)) % 128 == 0 and missing_words(words) < 128
    monkeypatch.setattr(linear_head, "platform", lambda: "tpu")
    assert missing_words(words) == 0


@pytest.mark.parametrize("words", [61, 128, 200])
def test_words_that_fill_up_tiles_change_no_softmax(monkeypatch, words):
    x, table, bias = _drawn((2, 5, 8), (words, 8), (words,))
    _same_elsewhere(monkeypatch, linear_head, "gpu", logits_over_vocabulary, x, table)
    following = jnp.asarray(np.random.default_rng(1).integers(0, words, (2, 5)))

    def total(x: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
        return next_token_loss(x, table, following, jnp.ones((2, 5)), bias).total

    monkeypatch.undo()
    _same_elsewhere(monkeypatch, linear_head, "gpu", total, x, table, bias)


def test_logits_in_16_bits_have_gradients_of_products_of_16_bits():
    x, table = (x.astype(jnp.bfloat16) for x in _drawn((2, 3, 8), (11, 8)))
    logits, pull = jax.vjp(logits_over_vocabulary, x, table)
    assert logits.dtype == jnp.float32
    text = str(jax.make_jaxpr(pull)(logits))
    assert text.count("dot_general") == 2 and "f32[2,3,8]" not in text


def test_a_norm_keeps_the_same_of_its_input(monkeypatch):
    (x,) = _drawn((6, 8))
    _same_elsewhere(monkeypatch, blocks, "gpu", lambda x: normalise(x + 3.0, 1e-12), x)


def test_projections_that_are_not_joined_are_those_that_are(monkeypatch):
    sizes, (x,) = {"D": 8, "H": 2, "K": 4}, _drawn((2, 3, 8))
    linears = [Linear("BLD,DHK->BLHK", sizes, jax.nn.initializers.normal(1.0), jnp.float32) for _ in range(3)]
    bound = [one.bind(one.init(jax.random.key(n), x)) for n, one in enumerate(linears)]
    _same_elsewhere(monkeypatch, blocks, "gpu", lambda x: jnp.stack(fused_projections(bound, x)), x)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_characters_are_looked_up_alike(monkeypatch, platform):
    (table,) = _drawn((9, 4))
    types = jnp.asarray(np.random.default_rng(1).integers(0, 9, (5, 7)))
    _same_elsewhere(monkeypatch, char_cnn, platform, lambda table: char_cnn._look_up(table, types), table)


@pytest.mark.parametrize(("platform", "devices"), [("gpu", 1), ("tpu", 1), ("gpu", 8), ("tpu", 8)])
def test_a_single_device_has_no_options_about_messages(platform, devices):
    """A later XLA may not know them, and a program without messages needs none."""
    mesh: Any = SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]), size=devices)
    assert bool(meshes.compiler_options(MeshConfig(), mesh)) == (devices > 1)
    own = MeshConfig(compiler_options=("xla_one=2",))
    assert meshes.compiler_options(own, mesh)["xla_one"] == 2
