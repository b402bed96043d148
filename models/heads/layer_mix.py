"""What a task reads of a backbone's layers, frozen or tuned: a mix of them, through a biLSTM of the task's own (Peters
et al. 2018, sections 3.2 and 3.3), and the heads over it."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.config import HeadConfig
from contexture.models.encoding import Encoding
from contexture.models.heads.crf import CrfOutput, LinearChainCRF
from contexture.models.layers.blocks import Init, logits_linear
from contexture.models.layers.dropout import DropoutKey, dropout, repeat_for_choices
from contexture.models.shapes import by_path

SITE = 1 << 17
"""Dropout's first site in these heads."""
EPS = 1e-12


class ScalarMix(nn.Module):
    """gamma · Σ softmax(weights)_n · layer_n: layers BLD, mask i32 BL → BLD. Weights begin with 0, gamma with 1.

    norm: each layer is normed first, with one mean and one variance over all features of all words of the batch, and
    nothing learned (bilm-tf, weight_layers; AllenNLP, ScalarMix).
    """

    norm: bool = False

    @nn.compact
    def __call__(self, layers: tuple[jax.Array, ...], mask_BL: jax.Array) -> jax.Array:
        weights_N = jax.nn.softmax(self.param("weights", nn.initializers.zeros, (len(layers),)))
        gamma = self.param("gamma", nn.initializers.ones, ())
        if self.norm:
            layers = tuple(_normed_together(x_BLD, mask_BL) for x_BLD in layers)
        mixed = jnp.stack([weights_N[n] * x_BLD for n, x_BLD in enumerate(layers)]).sum(0)
        return (gamma * mixed).astype(layers[0].dtype)


def learned_mixes(params: Any) -> dict[str, dict[str, Any]]:
    """Of each mix of several layers of a model, by where it goes ("input", "output"): {"weights": the share of each
    layer, the words' own first, "gamma": …}."""
    found = {}
    for path, x in by_path(params).items():
        if path.endswith("mix/weights") and x.size > 1:
            gamma = by_path(params)[path.replace("weights", "gamma")]
            place = "output" if "output_mix" in path else "input"
            found[place] = {"weights": jax.nn.softmax(x).tolist(), "gamma": float(gamma)}
    return found


def _normed_together(x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
    inside_BLD = mask_BL[:, :, None].astype(jnp.float32)
    count = jnp.maximum(inside_BLD.sum() * x_BLD.shape[-1], 1.0)
    x_BLD = x_BLD.astype(jnp.float32)
    mean = (x_BLD * inside_BLD).sum() / count
    variance = (jnp.square(x_BLD - mean) * inside_BLD).sum() / count
    return (x_BLD - mean) * jax.lax.rsqrt(variance + EPS)


class TaskLstm(nn.Module):
    """A biLSTM over each line's words: x_BLD, mask i32 BL → both directions side by side."""

    cells: int
    dtype: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
        lengths_B, both = mask_BL.sum(1), []
        for name, reverse in (("forward", False), ("backward", True)):
            cell = nn.OptimizedLSTMCell(self.cells, dtype=self.dtype, parent=None)
            run = nn.RNN(cell, reverse=reverse, keep_order=True, name=name)
            both.append(run(x_BLD, seq_lengths=lengths_B))
        return jnp.concatenate(both, -1)


class Features(nn.Module):
    """Encoding with states → what the task reads of each word, BLX."""

    head: HeadConfig
    rate: float
    dtype: Any

    @nn.compact
    def __call__(self, encoding: Encoding, dropout_key: DropoutKey | None) -> jax.Array:
        h, mask_BL, states = self.head, encoding.mask_BL, encoding.states
        layers = {"all": states, "top": states[-1:], "words": states[:1]}[h.mix]
        below = states[:1] if h.place == "output" else layers
        x_BLD = ScalarMix(h.mix_norm, name="mix")(below, mask_BL)
        x_BLD = dropout(x_BLD, self.rate, dropout_key, SITE)
        if h.cells:
            x_BLD = dropout(
                TaskLstm(h.cells, self.dtype, name="lstm")(x_BLD, mask_BL), self.rate, dropout_key, SITE + 1
            )
        if h.place != "input":
            more_BLD = ScalarMix(h.mix_norm, name="output_mix")(layers, mask_BL)
            x_BLD = jnp.concatenate([x_BLD, dropout(more_BLD, self.rate, dropout_key, SITE + 2)], -1)
        return x_BLD


class TagFeatures(nn.Module):
    """A tag for each word: Encoding with states → float32 BLC, or with a chain over tags CrfOutput."""

    sizes: dict[str, int]
    rate: float
    kernel_init: Init
    dtype: Any
    head: HeadConfig
    reads_states = True

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array | CrfOutput:
        x_BLX = Features(self.head, self.rate, self.dtype, name="features")(encoding, dropout_key)
        size = {**self.sizes, "_": x_BLX.shape[-1]}
        logits_BLC = logits_linear("BL_,_C->BLC", size, self.kernel_init, self.dtype, name="out")(x_BLX)
        if not self.head.crf:
            return logits_BLC
        return LinearChainCRF(self.sizes["C"], name="chain")(logits_BLC, batch["tags"], encoding.mask_BL)


class PooledFeatures(nn.Module):
    """A class, or a number, for each text or pair of texts: Encoding with states → float32 BC.

    A text is the largest and the mean of each feature over its words; a pair's two, u and v, are matched as
    [u, v, |u - v|, u·v] (Conneau et al. 2017, section 3.1; the matching model of the two is a biLSTM with shared
    weights).
    """

    sizes: dict[str, int]
    rate: float
    kernel_init: Init
    dtype: Any
    head: HeadConfig
    reads_states = True

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        features = Features(self.head, self.rate, self.dtype, name="features")
        x_BLX = features(encoding, repeat_for_choices(dropout_key, encoding.choices))
        inside_BLX = encoding.mask_BL[:, :, None] > 0
        most_BX = jnp.where(inside_BLX, x_BLX, -jnp.inf).max(1)
        most_BX = jnp.where(inside_BLX.any(1), most_BX, 0.0)
        count_BX = jnp.maximum(encoding.mask_BL.sum(1), 1)[:, None]
        mean_BX = jnp.where(inside_BLX, x_BLX, 0.0).sum(1) / count_BX
        text_BX = jnp.concatenate([most_BX, mean_BX], -1).astype(self.dtype)
        if self.head.pair:
            u, v = jnp.moveaxis(text_BX.reshape(-1, 2, text_BX.shape[-1]), 1, 0)
            text_BX = jnp.concatenate([u, v, jnp.abs(u - v), u * v], -1)
        size = {**self.sizes, "_": text_BX.shape[-1]}
        text_BX = dropout(text_BX, self.rate, dropout_key, SITE + 3)
        return logits_linear("B_,_C->BC", size, self.kernel_init, self.dtype, name="out")(text_BX)
