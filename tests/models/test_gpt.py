"""GPT's laws, on small models with weights large enough to matter."""

import dataclasses
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

from contexture.models import decode
from contexture.models.config import GptConfig
from contexture.models.families import build
from contexture.models.heads import chunked_softmax as softmax
from contexture.models.layers.dropout import dropout_key
from contexture.models.model import Outputs
from contexture.models.shapes import by_path
from contexture.models.sharding import partition_spec
from contexture.train.objectives import cross_entropy
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, assert_differs

PRE = GptConfig(vocab=61, length=24, layers=4, hidden=24, heads=3, ffn=40, dropout=0.2, unroll=1)
POST = dataclasses.replace(PRE, norm="post")
BANDED = dataclasses.replace(PRE, local_window=3)
CONFIGS = {"pre": PRE, "post": POST, "banded": BANDED, "one table": dataclasses.replace(POST, one_table=True)}
B, L = 4, 13


def _batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    lengths = np.array([L, 7, 10, 5])
    tokens = rng.integers(0, PRE.vocab, (B, L + 1), np.int32)
    return {
        "tokens": tokens[:, :-1],
        "next": tokens[:, 1:],
        "mask": (np.arange(L) < lengths[:, None]).astype(np.int32),
        "next_weights": (np.arange(L) < lengths[:, None]).astype(np.float32) * rng.random((B, L), np.float32),
    }


BATCH = _batch()


@pytest.fixture(scope="module")
def params() -> Any:
    """Deviation 0.3, norms about one; a pre-norm model's parameters serve a post-norm one too."""
    shapes = jax.eval_shape(lambda: build(PRE, ("lm",)).init(jax.random.key(0), BATCH)["params"])
    rng = np.random.default_rng(1)

    def draw(path: Any, x: Any) -> np.ndarray:
        return (0.3 * rng.standard_normal(x.shape) + ("scale" in str(path[-1]))).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


@partial(jax.jit, static_argnums=0, static_argnames="states")
def _apply(config: GptConfig, params: Any, batch: Any, states: bool = False) -> Outputs:
    return build(config, ("lm",)).apply({"params": params}, batch, states=states)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    ("name", "packed"),
    [("pre", False), ("banded", True), ("one table", False), *long(*((n, p) for n in CONFIGS for p in (False, True)))],
)
def test_gpt_never_looks_ahead(name: str, packed: bool, params: Any):
    """Bit for bit: what stands at a place or behind it changes no state, logit or loss before it."""
    batch = dict(BATCH)
    if packed:
        batch["packs"] = np.repeat([[1] * 4 + [2] * 5 + [3] * 4], B, 0).astype(np.int32)
    base = _apply(CONFIGS[name], params, batch, states=True)
    for place in (1, 6, L - 1):
        other = batch | {"tokens": batch["tokens"].copy()}
        other["tokens"][:, place:] = (other["tokens"][:, place:] + 17) % PRE.vocab
        moved = _apply(CONFIGS[name], params, other, states=True)
        for a, b in zip(base.encoding.states, moved.encoding.states, strict=True):
            assert jnp.array_equal(a[:, :place], b[:, :place])
        assert jnp.array_equal(base.heads["lm"].loss_BL[:, :place], moved.heads["lm"].loss_BL[:, :place])
        assert_differs(base.encoding.hidden_BLD[:, place], moved.encoding.hidden_BLD[:, place])


@pytest.mark.long
def test_no_gradient_comes_from_the_future(params: Any):
    """The gradient of a state to every token vector behind it is exactly zero."""
    place = 5

    line = {name: x[:1] for name, x in BATCH.items()} | {"tokens": np.arange(L, dtype=np.int32)[None]}
    backbone = params["backbone"]

    def state(table: jax.Array) -> jax.Array:
        given = {"backbone": {**backbone, "embeddings": {**backbone["embeddings"], "tokens": table}}}
        return _apply(BANDED, given, line).encoding.hidden_BLD[0, place].sum()

    gradient = jax.grad(state)(params["backbone"]["embeddings"]["tokens"])
    assert not gradient[place + 1 : L].any() and gradient[: place + 1].any(1).all()


def test_packed_documents_are_documents_alone(params: Any):
    """Documents in one window, with packs and positions, give what each gives in a line of its own."""
    cuts = [(0, 4), (4, 9), (9, 13)]
    packs, positions = np.zeros((1, L), np.int32), np.zeros((1, L), np.int32)
    for number, (first, last) in enumerate(cuts, 1):
        packs[0, first:last], positions[0, first:last] = number, np.arange(last - first)
    line = {name: x[:1] for name, x in BATCH.items()}
    whole = _apply(BANDED, params, line | {"packs": packs, "positions": positions})
    for first, last in cuts:
        alone = _apply(BANDED, params, {name: x[:, first:last] for name, x in line.items()})
        close = partial(assert_close, rtol=1e-4, atol=1e-4)
        close(whole.encoding.hidden_BLD[:, first:last], alone.encoding.hidden_BLD)
        close(whole.heads["lm"].loss_BL[:, first:last], alone.heads["lm"].loss_BL)


def test_a_band_holds_as_many_keys_as_it_says(params: Any):
    """Dense, then banded by 3: through the banded layer alone, a place is moved by itself and the two before."""
    config = dataclasses.replace(BANDED, layers=2)
    backbone = params["backbone"]
    two = {"backbone": {**backbone, "layers": jax.tree.map(lambda x: x[:2].copy(), backbone["layers"])}}
    for array in two["backbone"]["layers"]["attention"]["value"].values():
        array[0] = 0  # the dense layer moves nothing between places
    base = _apply(config, two, BATCH).encoding.hidden_BLD[0]
    for place in range(L):
        other = BATCH | {"tokens": BATCH["tokens"].copy()}
        other["tokens"][0, place] += 1
        moved = _apply(config, two, other).encoding.hidden_BLD[0]
        changed = np.flatnonzero((np.abs(base - moved) > 0).any(-1)).tolist()
        assert changed == list(range(place, min(place + 3, L)))


@pytest.mark.parametrize("limit", [3 * B * 61, *long(1, 5 * B * 61, 1 << 30)])
def test_a_loss_in_parts_is_the_whole_loss(limit: int, params: Any, monkeypatch: pytest.MonkeyPatch):
    """Value, hits and gradients are those of a softmax over all logits at once."""
    monkeypatch.setattr(softmax, "MAX_LOGITS", limit)
    rng = np.random.default_rng(2)
    x_BLD, table_VD = rng.standard_normal((B, L, 24), np.float32), rng.standard_normal((61, 24), np.float32)
    next_BL, weights_BL = BATCH["next"].copy(), jnp.asarray(BATCH["next_weights"])
    next_BL[:, :3] = (x_BLD[:, :3] @ table_VD.T).argmax(-1)

    next_BL = jnp.asarray(next_BL)

    def ours(x: Any, table: Any) -> Any:
        scored = softmax.next_token_loss(x, table, next_BL, weights_BL)
        return 3.0 * scored.total, scored

    def plain(x: Any, table: Any) -> Any:
        loss_BL, hit_BL = cross_entropy(jnp.einsum("BLD,VD->BLV", x, table), next_BL)
        return 3.0 * (loss_BL * weights_BL).sum(), (loss_BL, hit_BL)

    (a, scored), got = jax.value_and_grad(ours, (0, 1), has_aux=True)(x_BLD, table_VD)
    (b, (loss_BL, hit_BL)), expected = jax.value_and_grad(plain, (0, 1), has_aux=True)(x_BLD, table_VD)
    assert_close(a, b, rtol=1e-6)
    assert_close(scored.loss_BL, loss_BL, rtol=1e-5, atol=1e-5)
    assert jnp.array_equal(scored.hit_BL, hit_BL) and bool(hit_BL[:, :3].all()) and not bool(hit_BL.all())
    for x, y in zip(got, expected, strict=True):
        assert_close(x, y, rtol=1e-5, atol=1e-5)


def test_the_logits_of_a_whole_batch_are_never_there_at_once():
    """Compiled for 8 lines of 512 over 30,000 tokens: 470 MB of logits, less than 300 MB of memory in all."""
    shapes = [jax.ShapeDtypeStruct(s, d) for s, d in (((8, 512, 64), "float32"), ((30_000, 64), "float32"),
                                                      ((8, 512), "int32"), ((8, 512), "float32"))]  # fmt: skip
    loss = jax.jit(jax.grad(lambda x, t, n, w: softmax.next_token_loss(x, t, n, w).total, (0, 1)))
    used = loss.lower(*shapes).compile().memory_analysis()
    assert used is not None and used.temp_size_in_bytes < 300e6


def test_on_a_mesh_no_gradient_of_the_table_is_summed_in_every_part():
    """Four devices that share the batch: outside the loop over the parts alone does a V × D gradient cross the mesh."""
    mesh = jax.make_mesh((4, 1, 1), ("data", "fsdp", "tensor"), devices=jax.devices()[:4],
                         axis_types=(AxisType.Auto,) * 3)  # fmt: skip
    shapes = [((8, 256, 32), "float32", "BLD"), ((65_536, 32), "float32", "VD"), ((8, 256), "int32", "BL"),
              ((8, 256), "float32", "BL")]  # fmt: skip
    axes = dict(mesh.shape)
    given = [jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(mesh, partition_spec(dims, shape, axes)))
             for shape, kind, dims in shapes]  # fmt: skip
    loss = jax.jit(jax.grad(lambda x, t, n, w: softmax.next_token_loss(x, t, n, w).total, (0, 1)))
    with jax.set_mesh(mesh):
        text = loss.lower(*given).compile().as_text()
    assert text is not None and "while(" in text
    parts = text.split("\n\n")
    entry = [part for part in parts if part.lstrip().startswith("ENTRY")]
    crossing = re.compile(r"65536,32\]\S* all-reduce")
    assert len(entry) == 1 and crossing.search(entry[0])
    assert not any(crossing.search(part) for part in parts if part is not entry[0])


def test_dropout_falls_on_the_one_table_once_a_step(params: Any):
    """The same token has the same vector wherever it stands, in every line, with dropout on; else it has not."""
    batch = BATCH | {"tokens": np.full((B, L), 7, np.int32), "positions": np.zeros((B, L), np.int32)}
    for one_table in (True, False):
        config = dataclasses.replace(CONFIGS["one table"], one_table=one_table)
        drop = dropout_key(0, jnp.int32(3), jnp.arange(B))
        apply = jax.jit(partial(build(config).apply, states=True))
        outputs: Any = apply({"params": params}, batch, drop)
        first = np.asarray(outputs.encoding.states[0])
        assert (first == first[0, 0]).all() == one_table


@pytest.mark.parametrize("name", ["banded", *long("pre", "post")])
def test_writing_a_token_at_a_time_is_reading_them_all(name: str, params: Any):
    """Prompts of unequal length read at once, then token by token: at each step the states of the whole text."""
    config, lengths = CONFIGS[name], BATCH["mask"].sum(1) - 3
    apart = decode.unstack_params(params, config, config.vocab)
    text = decode.init_state(config, B, L + 3)
    prompt = int(lengths.max())
    mask = (np.arange(prompt) < lengths[:, None]).astype(np.int32)
    read = jax.jit(partial(decode.extend, config))
    whole = _apply(config, params, BATCH).encoding.hidden_BLD
    hidden, text = read(apart, text, BATCH["tokens"][:, :prompt], mask)
    for row, length in enumerate(lengths):
        assert_close(hidden[row, :length], whole[row, :length], rtol=2e-4, atol=2e-4)
    for step in range(3):
        places = lengths + step
        hidden, text = read(apart, text, BATCH["tokens"][np.arange(B), places][:, None], np.ones((B, 1), np.int32))
        assert_close(hidden[:, 0], whole[np.arange(B), places], rtol=2e-4, atol=2e-4)
        expected = jnp.einsum("BD,VD->BV", whole[np.arange(B), places], params["backbone"]["embeddings"]["tokens"])
        assert_close(decode.logits(config, apart, hidden[:, 0]), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("init", ["paper", "released"])
def test_kernels_into_the_residual_stream_are_drawn_smaller(init: Any):
    config = GptConfig(vocab=500, length=200, layers=8, hidden=96, heads=3, ffn=384, init=init)
    share = 0.25 if init == "paper" else 1.0
    deviations = {
        "layers/attention/out/kernel": 0.02 * share, "layers/ffn/out/kernel": 0.02 * share,
        "layers/ffn/in/kernel": 0.02, "layers/attention/query/kernel": 0.02,
        "embeddings/tokens": 0.02, "embeddings/positions": 0.01,
    }  # fmt: skip

    @jax.jit
    def drawn(key: jax.Array) -> dict[str, jax.Array]:
        params = by_path(build(config).init(key, BATCH)["params"]["backbone"])
        return {path: params[path] for path in deviations}

    for path, x in drawn(jax.random.key(0)).items():
        assert abs(np.asarray(x).std() / deviations[path] - 1) < 0.02, path


def test_biases_left_out_are_biases_of_zero(params: Any):
    bare = dataclasses.replace(PRE, biases=False)
    shapes = jax.eval_shape(lambda: build(bare, ("lm",)).init(jax.random.key(0), BATCH)["params"])
    rng = np.random.default_rng(3)
    fewer = jax.tree.map(lambda x: np.float32(0.3 * rng.standard_normal(x.shape)), shapes)

    def over(whole: Any, part: Any) -> Any:
        return {k: over(v, part[k]) if isinstance(v, dict) else part.get(k, np.zeros_like(v)) for k, v in whole.items()}

    a, b = _apply(bare, fewer, BATCH), _apply(PRE, over(params, fewer), BATCH)
    assert "bias" not in str(jax.tree_util.tree_structure(fewer))
    assert_close(a.encoding.hidden_BLD, b.encoding.hidden_BLD, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"local_window": -1}, "model.local-window=-1 is not a number of keys"),
        ({"position_std": 0.0}, "model.position-std=0.0 is not above 0"),
        ({"heads": 5}, "model.hidden=24 is not a multiple of model.heads=5"),
        ({"layers": 0}, "model.layers=0 is not a positive number"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(field: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PRE, **field)
