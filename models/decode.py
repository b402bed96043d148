"""Writing with a GPT, a token at a time: prompts are read once, each step reads one token and remembers the rest.

On the way in the stacked parameters are taken apart into one tree a layer: a slice of a stacked kernel in each step
would cost more than the product with it. The token table is there twice, once turned for the softmax, for the same
reason.
"""

from functools import partial
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from contexture.models import gpt
from contexture.models.config import GptConfig, Sampling
from contexture.models.layers.attention import KVCache
from contexture.models.layers.blocks import Norm

Params = Any


def unstack_params(params: Params, config: GptConfig, pieces: int) -> Params:
    """The backbone's parameters with `layers` as a list, and the softmax's table turned (`softmax`, DV), of which the
    first `pieces` rows are tokens."""
    backbone = params["backbone"]
    layers = [jax.tree.map(lambda x, n=n: x[n], backbone["layers"]) for n in range(config.layers)]
    table_VD = backbone["embeddings"]["tokens"] if config.tied else params["heads_lm"]["table"]
    return {**backbone, "layers": layers, "softmax": table_VD[:pieces].T}


@flax.struct.dataclass
class DecodeState:
    """A batch being written: what is remembered of each layer (BMHK), where each remembered token stands in its text
    (i32 BM), whether it is one (bool BM), and how many places are taken."""

    kv_cache: tuple[KVCache, ...]
    place_BM: jax.Array
    seen_BM: jax.Array
    filled: jax.Array


def init_state(config: GptConfig, lines: int, length: int) -> DecodeState:
    """Room for `length` tokens of each line, nothing written yet."""
    shape = (lines, length, config.heads, config.hidden // config.heads)
    zeros = jnp.zeros(shape, jnp.dtype(config.dtype))
    kv_cache = tuple((zeros, zeros) for _ in range(config.layers))
    return DecodeState(kv_cache, jnp.zeros((lines, length), jnp.int32), jnp.zeros((lines, length), bool), jnp.int32(0))


def extend(
    config: GptConfig, params: Params, text: DecodeState, tokens_BL: jax.Array, mask_BL: jax.Array
) -> tuple[jax.Array, DecodeState]:
    """L tokens more of each line (mask 0 where a line has none) → the last layer at each, hidden BLD, and the text.

    params: `unstack_params`'s. A token stands behind all those of its line that were read before it.
    """
    L = tokens_BL.shape[1]
    start = text.filled
    place_BL = text.seen_BM.sum(1)[:, None] + jnp.cumsum(mask_BL, axis=1) - 1
    place_BL = jnp.clip(place_BL, 0, config.length - 1)
    put = jax.lax.dynamic_update_slice_in_dim
    place_BM = put(text.place_BM, place_BL.astype(jnp.int32), start, axis=1)
    seen_BM = put(text.seen_BM, mask_BL > 0, start, axis=1)
    biases = gpt.causal_biases(config, place_BL, place_BM, seen_BM[:, None, :])
    found: Any = gpt.embeddings(config).apply({"params": params["embeddings"]}, tokens_BL, place_BL, None, 0)
    x_BLD: Any = found[0]
    block, kv_cache = gpt.Block(config), []
    for layer, (weights, layer_cache) in enumerate(zip(params["layers"], text.kv_cache, strict=True)):
        x_BLD, layer_cache = block.apply(  # pyright: ignore[reportGeneralTypeIssues]
            {"params": weights}, x_BLD, layer, biases, layer_cache, start, method=gpt.Block.step
        )
        kv_cache.append(layer_cache)
    if config.norm == "pre":
        norm = Norm(config.eps, jnp.dtype(config.dtype), config.biases)
        x_BLD = norm.apply({"params": params["norm"]}, x_BLD)
    return x_BLD, DecodeState(tuple(kv_cache), place_BM, seen_BM, start + L)


def logits(config: GptConfig, params: Params, x_BD: jax.Array) -> jax.Array:
    """hidden BD → float32 BV, over the tokens alone."""
    table_DV = params["softmax"].astype(x_BD.dtype)
    return jnp.einsum("BD,DV->BV", x_BD, table_DV, preferred_element_type=jnp.float32)


def sample(logits_BV: jax.Array, keys_B: jax.Array, how: Sampling) -> jax.Array:
    """The next token of each line, i32 B; each line draws with its own key."""
    if how.temperature < 1e-7:  # finer than float32 tells logits apart
        return logits_BV.argmax(-1).astype(jnp.int32)
    kept_BV = filter_logits(logits_BV / how.temperature, how)
    return jax.vmap(jax.random.categorical)(keys_B, kept_BV).astype(jnp.int32)


def filter_logits(logits_BV: jax.Array, how: Sampling) -> jax.Array:
    """The logits, -inf where top_k or top_p leave a token out (gpt-2, sample.py; at least one stays)."""
    if 0 < how.top_k < logits_BV.shape[-1]:
        least_B1 = jax.lax.top_k(logits_BV, how.top_k)[0][:, -1:]
        logits_BV = jnp.where(logits_BV < least_B1, -jnp.inf, logits_BV)
    if how.top_p < 1.0:
        sorted_BV = jnp.flip(jnp.sort(logits_BV, axis=-1), axis=-1)
        sums_BV = jnp.cumsum(jax.nn.softmax(sorted_BV, axis=-1), axis=-1)
        if how.exclusive:
            last_B = (sums_BV <= how.top_p).sum(-1) - 1
        else:
            last_B = (sums_BV < how.top_p).sum(-1)
        last_B = jnp.clip(last_B, 0, logits_BV.shape[-1] - 1)
        least_B1 = jnp.take_along_axis(sorted_BV, last_B[:, None], axis=-1)
        logits_BV = jnp.where(logits_BV < least_B1, -jnp.inf, logits_BV)
    return logits_BV


@flax.struct.dataclass
class SamplingState:
    """A batch on the way: the text, the token chosen last (i32 B), how many were chosen, and each line's key."""

    text: DecodeState
    token_B: jax.Array
    count: jax.Array
    keys_B: jax.Array


@partial(jax.jit, static_argnums=(0, 1, 2))
def prefill(
    config: GptConfig, how: Sampling, room: int, params: Params, tokens_BL: jax.Array, mask_BL: jax.Array,
    keys_B: jax.Array,
) -> SamplingState:  # fmt: skip
    """Reads the prompts (padding on the right) and chooses each line's first token; room: for how many tokens more."""
    B, L = tokens_BL.shape
    hidden_BLD, text = extend(config, params, init_state(config, B, L + room), tokens_BL, mask_BL)
    last_BD = jnp.take_along_axis(hidden_BLD, (mask_BL.sum(1) - 1)[:, None, None], axis=1)[:, 0]
    token_B = sample(logits(config, params, last_BD), _fold(keys_B, 0), how)
    return SamplingState(text, token_B, jnp.int32(1), keys_B)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=4)
def generate_tokens(
    config: GptConfig, how: Sampling, steps: int, params: Params, writing: SamplingState
) -> tuple[SamplingState, jax.Array]:
    """`steps` tokens more of each line → the writing, and those tokens i32 B × steps."""

    def step(now: SamplingState, _: None) -> tuple[SamplingState, jax.Array]:
        ones_B1 = jnp.ones_like(now.token_B)[:, None]
        hidden_B1D, text = extend(config, params, now.text, now.token_B[:, None], ones_B1)
        token_B = sample(logits(config, params, hidden_B1D[:, 0]), _fold(now.keys_B, now.count), how)
        return SamplingState(text, token_B, now.count + 1, now.keys_B), token_B

    writing, tokens = jax.lax.scan(step, writing, length=steps)
    return writing, tokens.T


def _fold(keys_B: jax.Array, count: jax.Array | int) -> jax.Array:
    return jax.vmap(lambda key: jax.random.fold_in(key, count))(keys_B)
