"""Attention of sequences that are cut over devices: each has a part of the queries, and all keys."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

from contexture.models.config import GptConfig
from contexture.models.layers.attention import flash, module
from contexture.models.layers.attention.mask import AttentionMask, choose
from contexture.models.layers.dropout import DropoutKey, WeightDropout, dropout_key
from contexture.models.sharding import CONTEXT_AXES, partition_spec
from tests.helpers.attention_cases import (
    QUICKLY,
    Case,
    Tiled,
    bias_of,
    draw_arrays,
    draw_documents,
    draw_key,
    draw_mask,
    gradients,
)
from tests.helpers.long import long
from tests.helpers.parity_rule import close

LENGTH, WIDTH, ROWS, HEADS = 64, 16, 2, 2


def mesh_of(*sizes: int) -> jax.sharding.Mesh:
    devices = jax.devices()[: int(np.prod(sizes))]
    return jax.make_mesh(sizes, CONTEXT_AXES, axis_types=(AxisType.Auto,) * 4, devices=devices)


def compared(attend: Any, mesh: jax.sharding.Mesh) -> str:
    """Asserts that attention and its gradients are the same on a mesh as on one device; returns the mesh's program."""
    arrays = draw_arrays((ROWS, LENGTH, HEADS, WIDTH), "float32")
    program = jax.jit(partial(gradients, attend), compiler_options=QUICKLY)
    alone = program(arrays)
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(x, NamedSharding(mesh, partition_spec("BLHK", x.shape, dict(mesh.shape)))) for x in arrays
        ]
        compiled = program.lower(placed).compile()
        for a, b in zip(compiled(placed), alone, strict=True):
            close(a, b, tolerance=1e-5)
    return str(compiled.as_text())


@pytest.mark.parametrize(
    ("kernel", "kind", "sizes"),
    [
        ("tpu_long", "packed_banded", (1, 1, 4, 1)),
        *long(
            ("gpu", "packed_banded", (2, 1, 2, 2)),
            ("tpu", "padded", (1, 1, 2, 2)),
            ("tpu", "causal", (1, 2, 4, 1)),
            ("tpu_long", "banded", (1, 1, 2, 1)),
            ("gpu", "causal", (1, 1, 4, 1)),
            ("gpu", "padded", (1, 1, 4, 2)),
            ("tpu", "packed", (1, 2, 2, 2)),
        ),
    ],
)
def test_a_part_of_the_queries_sees_the_keys_of_all(kernel: str, kind: str, sizes: tuple[int, ...]):
    """With dropout: its masks are numbered by the place in the whole sequence."""
    case = Case(kind, LENGTH, WIDTH, "float32", 0.2, ROWS, HEADS)
    mask, dropped = draw_mask(case, 3), WeightDropout(case.rate, draw_key(ROWS, 3), 4)
    tiles: Any = Tiled(kernel, 16, 32 if kernel == "tpu_long" else 16)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return flash.attend(q, k, v, mask, dropped, kernel=tiles, interpret=True)

    text = compared(attend, mesh_of(*sizes))
    assert "all-gather" in text and "reduce-scatter" in text


@pytest.mark.parametrize("kind", ["reference", *long("kernel")])
def test_texts_that_share_rows_keep_their_dropout(kind: str):
    """Drawn by text and place in it, whatever part of the row it lies in."""
    packs_BL = draw_documents(np.random.default_rng(1), ROWS, LENGTH)
    first_BL = jnp.argmax(packs_BL[:, :, None] == packs_BL[:, None], -1)
    key = dropout_key(3, jnp.int32(5), jnp.arange(8))
    key = DropoutKey(key.key, key.row_B, packs_BL, jnp.arange(LENGTH)[None] - first_BL)
    tiles: Any = Tiled("tpu", 16, 16)
    mask, dropped = AttentionMask(packs_BL=packs_BL, causal=True), WeightDropout(0.2, key, 4)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        if kind == "reference":
            return module.reference_attend(q, k, v, bias_of(mask, LENGTH), dropped)
        return flash.attend(q, k, v, mask, dropped, kernel=tiles, interpret=True)

    assert "all-gather" in compared(attend, mesh_of(1, 1, 4, 1))


def test_queries_that_are_no_whole_tiles_are_computed_by_all():
    """48 are 12 for each of four devices, less than a tile: a batch of short texts need not be refused."""
    tiles: Any = Tiled("tpu", 16, 16)
    with jax.set_mesh(mesh_of(1, 1, 4, 1)):
        made = [
            flash.sizes_of(AttentionMask(causal=True), length, WIDTH, jnp.float32, tiles, 0.0) for length in (48, 64)
        ]
    assert [(s.is_cut, s.query_blocks, s.key_blocks) for s in made] == [(False, 3, 3), (True, 1, 4)]


def test_cudnn_takes_no_part_of_the_queries():
    config = GptConfig(hidden=64, heads=1, dtype="bfloat16", attention_dropout=0.0)
    assert choose(config, "gpu").name == "cudnn"
    with jax.set_mesh(mesh_of(1, 1, 2, 1)):
        assert choose(config, "gpu").name == "pallas"
        with pytest.raises(ValueError, match="attention=cudnn does not go with mesh.context"):
            choose(GptConfig(hidden=64, heads=1, dtype="bfloat16", attention_dropout=0.0, attention="cudnn"), "gpu")
