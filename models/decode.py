"""Autoregressive decoding with a KV cache: prefill the prompt, then one token per step."""

from collections.abc import Mapping
from functools import partial
from typing import TypedDict, cast

import flax.struct
import jax
import jax.numpy as jnp

from contexture.models import gpt
from contexture.models.config import GptConfig, Sampling
from contexture.models.layers.attention.module import KVCache
from contexture.models.layers.blocks import Norm
from contexture.models.shapes import Params, by_path


class DecodeParams(TypedDict):
    """A backbone's parameters as `unstack_params` returns them."""

    embeddings: Params
    layers: list[Params]
    norm: Params
    """The final norm's; absent from post-norm models."""
    softmax: jax.Array
    """The softmax's table, transposed: DV."""


def unstack_params(params: Params, config: GptConfig, vocab_size: int) -> DecodeParams:
    """Returns the backbone's parameters with `layers` as a list, and the softmax's table transposed (`softmax`, DV).

    Only the table's first vocab_size rows are tokens; any others pad it, or are GPT-1's positions.
    """
    backbone = params["backbone"]
    assert isinstance(backbone, Mapping)
    # A step multiplies by each kernel once. Slicing it out of the stacked array would copy it, which costs more than
    # that product; so would transposing the token table. Both are done once, here.
    layers = [jax.tree.map(lambda x, n=n: x[n], backbone["layers"]) for n in range(config.layers)]
    table_VD = by_path(params)["backbone/embeddings/tokens" if config.tied else "heads_lm/table"]
    return cast(DecodeParams, {**backbone, "layers": layers, "softmax": table_VD[:vocab_size].T})


@flax.struct.dataclass
class DecodeState:
    """A batch of texts being generated, padded to M cache rows.

    Args:
        kv_cache: keys and values of each layer, BMHK.
        position_BM: each cached token's position in its text, i32.
        valid_BM: whether a cache row holds a token; padding of prompts is none.
        filled: how many cache rows are written, the same for all texts.
    """

    kv_cache: tuple[KVCache, ...]
    position_BM: jax.Array
    valid_BM: jax.Array
    filled: jax.Array


def init_state(config: GptConfig, batch_size: int, length: int) -> DecodeState:
    """Returns an empty state with room for `length` tokens of each text."""
    # The cache has its final length from the start, so that one compiled step serves every token.
    shape = (batch_size, length, config.heads, config.hidden // config.heads)
    zeros = jnp.zeros(shape, jnp.dtype(config.dtype))
    kv_cache = tuple((zeros, zeros) for _ in range(config.layers))
    position_BM, valid_BM = jnp.zeros((batch_size, length), jnp.int32), jnp.zeros((batch_size, length), bool)
    return DecodeState(kv_cache, position_BM, valid_BM, jnp.int32(0))


def extend(
    config: GptConfig, params: DecodeParams, state: DecodeState, tokens_BL: jax.Array, mask_BL: jax.Array
) -> tuple[jax.Array, DecodeState]:
    """Runs L more tokens of each text (mask 0: none) → (the last layer's output BLD, the new state)."""
    L = tokens_BL.shape[1]
    start = state.filled
    # Prompts are padded on the right, so cache rows and positions differ: a shorter prompt's next token is written
    # behind the padding, and continues the count of its own tokens.
    position_BL = state.valid_BM.sum(1)[:, None] + jnp.cumsum(mask_BL, axis=1) - 1
    # Padding may count to -1, and a text past the model's length keeps the last position.
    position_BL = jnp.clip(position_BL, 0, config.length - 1)
    # All texts write the same cache rows from `start` on; valid_BM says in which of them a text has a token.
    write = jax.lax.dynamic_update_slice_in_dim
    position_BM = write(state.position_BM, position_BL.astype(jnp.int32), start, axis=1)
    valid_BM = write(state.valid_BM, mask_BL > 0, start, axis=1)
    biases = gpt.causal_biases(config, position_BL, position_BM, valid_BM[:, None, :])
    x_BLD, _ = gpt.embeddings(config).apply({"params": params["embeddings"]}, tokens_BL, position_BL, None, 0)
    block, kv_cache = gpt.Block(config), []
    for layer, (layer_params, layer_cache) in enumerate(zip(params["layers"], state.kv_cache, strict=True)):
        x_BLD, layer_cache = block.apply(
            {"params": layer_params}, x_BLD, layer, biases, layer_cache, start, method=gpt.Block.step
        )
        # Each layer's new keys and values go into a new cache; where the state is donated they are written in place.
        kv_cache.append(layer_cache)
    if config.norm == "pre":
        norm = Norm(config.eps, jnp.dtype(config.dtype), config.biases)
        x_BLD = cast(jax.Array, norm.apply({"params": params["norm"]}, x_BLD))
    return x_BLD, DecodeState(tuple(kv_cache), position_BM, valid_BM, start + L)


def logits(config: GptConfig, params: DecodeParams, x_BD: jax.Array) -> jax.Array:
    """hidden BD → float32 BV, over the tokens alone."""
    table_DV = params["softmax"].astype(x_BD.dtype)
    return jnp.einsum("BD,DV->BV", x_BD, table_DV, preferred_element_type=jnp.float32)


def sample(logits_BV: jax.Array, keys_B: jax.Array, sampling: Sampling) -> jax.Array:
    """Returns the next token of each text, i32 B. Each text draws with its own key, whatever else is in the batch."""
    if sampling.temperature < 1e-7:  # finer than float32 tells logits apart
        return logits_BV.argmax(-1).astype(jnp.int32)
    filtered_BV = filter_logits(logits_BV / sampling.temperature, sampling)
    return jax.vmap(jax.random.categorical)(keys_B, filtered_BV).astype(jnp.int32)


def filter_logits(logits_BV: jax.Array, sampling: Sampling) -> jax.Array:
    """Returns the logits with -inf for tokens that top_k or top_p exclude (gpt-2, sample.py). At least one remains."""
    # Both filters are a threshold on the logits, so tokens that tie with the last one kept are kept too.
    if 0 < sampling.top_k < logits_BV.shape[-1]:
        threshold_B1 = jax.lax.top_k(logits_BV, sampling.top_k)[0][:, -1:]
        logits_BV = jnp.where(logits_BV < threshold_B1, -jnp.inf, logits_BV)
    if sampling.top_p < 1.0:
        # Nucleus sampling (Holtzman et al. 2019), after top_k: the softmax is over the tokens that this left.
        sorted_BV = jnp.flip(jnp.sort(logits_BV, axis=-1), axis=-1)
        sums_BV = jnp.cumsum(jax.nn.softmax(sorted_BV, axis=-1), axis=-1)
        # The last rank kept. The paper's nucleus is the smallest set that reaches p; the original's code keeps the
        # tokens whose cumulated probability does not exceed p, one fewer.
        if sampling.exclusive:
            last_B = (sums_BV <= sampling.top_p).sum(-1) - 1
        else:
            last_B = (sums_BV < sampling.top_p).sum(-1)
        last_B = jnp.clip(last_B, 0, logits_BV.shape[-1] - 1)
        threshold_B1 = jnp.take_along_axis(sorted_BV, last_B[:, None], axis=-1)
        logits_BV = jnp.where(logits_BV < threshold_B1, -jnp.inf, logits_BV)
    return logits_BV


@flax.struct.dataclass
class SamplingState:
    """A batch of texts between two steps.

    Args:
        text: the cache and what it holds; the last token is not in it yet.
        token_B: the token sampled last, i32.
        count: how many tokens were sampled.
        keys_B: each text's random key.
    """

    text: DecodeState
    token_B: jax.Array
    count: jax.Array
    keys_B: jax.Array


@partial(jax.jit, static_argnums=(0, 1, 2))
def prefill(
    config: GptConfig,
    sampling: Sampling,
    new_tokens: int,
    params: DecodeParams,
    tokens_BL: jax.Array,
    mask_BL: jax.Array,
    keys_B: jax.Array,
) -> SamplingState:
    """Runs the prompts (padding on the right) at once and samples each text's first token.

    The cache has room for new_tokens more of each text.
    """
    B, L = tokens_BL.shape
    hidden_BLD, text = extend(config, params, init_state(config, B, L + new_tokens), tokens_BL, mask_BL)
    # The last token of each prompt, which differs from the last column where the prompt is padded.
    last_BD = jnp.take_along_axis(hidden_BLD, (mask_BL.sum(1) - 1)[:, None, None], axis=1)[:, 0]
    # The first token has index 0; generate_tokens continues from `count` = 1.
    token_B = sample(logits(config, params, last_BD), _fold_in(keys_B, 0), sampling)
    return SamplingState(text, token_B, jnp.int32(1), keys_B)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=4)
def generate_tokens(
    config: GptConfig, sampling: Sampling, steps: int, params: DecodeParams, state: SamplingState
) -> tuple[SamplingState, jax.Array]:
    """Samples `steps` more tokens of each text → (the new state, those tokens i32 B × steps).

    The state is donated: its cache is updated in place.
    """

    def step(state: SamplingState, _: None) -> tuple[SamplingState, jax.Array]:
        mask_B1 = jnp.ones_like(state.token_B)[:, None]
        hidden_B1D, text = extend(config, params, state.text, state.token_B[:, None], mask_B1)
        # A key for each token from the text's key and the token's number: the tokens do not depend on how many steps
        # one call takes.
        token_B = sample(logits(config, params, hidden_B1D[:, 0]), _fold_in(state.keys_B, state.count), sampling)
        return SamplingState(text, token_B, state.count + 1, state.keys_B), token_B

    state, tokens = jax.lax.scan(step, state, length=steps)
    return state, tokens.T


def _fold_in(keys_B: jax.Array, count: jax.Array | int) -> jax.Array:
    return jax.vmap(lambda key: jax.random.fold_in(key, count))(keys_B)
