"""Task heads on a learned mix of the backbone's layers, frozen or fine-tuned (Peters et al. 2018, sections 3.2, 3.3).

layers → scalar mix → dropout → the task's biLSTM (optional) → linear map, with a CRF over tags (optional)
"""

import dataclasses
from typing import TypedDict

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from contexture.models.config import HeadConfig
from contexture.models.encoding import Encoding
from contexture.models.heads.crf import CrfOutput, LinearChainCRF
from contexture.models.heads.linear_head import LinearHead, without_absent
from contexture.models.layers.blocks import logits_linear
from contexture.models.layers.dropout import DropoutKey, dropout, repeat_for_choices
from contexture.models.shapes import Params, by_path
from contexture.models.sharding import whole_sequences

SITE = 1 << 17
"""Dropout's first site in these heads, above the sites of heads without a mix."""
EPS = 1e-12


class ScalarMix(nn.Module):
    """gamma · Σ_n softmax(weights)_n · layer_n: layers BLD, mask i32 BL → BLD. Weights start at 0, gamma at 1.

    norm: each layer is normalised first, with one mean and one variance over all features of all words of the batch and
    no learned scale (bilm-tf, weight_layers; AllenNLP, ScalarMix).
    """

    norm: bool = False

    @nn.compact
    def __call__(self, layers: tuple[jax.Array, ...], mask_BL: jax.Array) -> jax.Array:
        # Equal weights at first: an untrained mix is the layers' mean.
        weights_N = jax.nn.softmax(self.param("weights", nn.initializers.zeros, (len(layers),)))
        gamma = self.param("gamma", nn.initializers.ones, ())
        if self.norm:
            layers = tuple(_norm_over_batch(x_BLD, mask_BL) for x_BLD in layers)
        # The weights are float32, and so is the sum; it is rounded to the layers' dtype once.
        mixed = jnp.stack([weights_N[n] * x_BLD for n, x_BLD in enumerate(layers)]).sum(0)
        return (gamma * mixed).astype(layers[0].dtype)


class LearnedMix(TypedDict):
    """The learned values of a scalar mix; weights after the softmax, the lowest layer's first."""

    weights: list[float]
    gamma: float


def learned_mixes(params: Params) -> dict[str, LearnedMix]:
    """Returns a model's mixes of several layers by where they go: "input" or "output" of the task's biLSTM."""
    mixes: dict[str, LearnedMix] = {}
    leaves = by_path(params)
    for path, x in leaves.items():
        # A mix of one layer has nothing to report: its weight is 1.
        if path.endswith("mix/weights") and x.size > 1:
            gamma = leaves[path.replace("weights", "gamma")]
            name = "output" if "output_mix" in path else "input"
            mixes[name] = {"weights": jax.nn.softmax(x).tolist(), "gamma": float(gamma)}
    return mixes


def describe_mixes(params: Params) -> list[str]:
    """The learned mixes for people, a sentence each."""
    return [
        f"learned mix at the {place}, the lowest layer first: {' '.join(f'{w:.3f}' for w in mix['weights'])}; "
        f"gamma {mix['gamma']:.3f}"
        for place, mix in learned_mixes(params).items()
    ]


def _norm_over_batch(x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
    """(x - mean)/sqrt(var + eps) with scalars mean and var over all words of the batch, padding left out."""
    # Over the whole batch, as in the original: outputs depend a little on which sequences share a batch.
    inside_BLD = mask_BL[:, :, None].astype(jnp.float32)
    count = jnp.maximum(inside_BLD.sum() * x_BLD.shape[-1], 1.0)
    x_BLD = x_BLD.astype(jnp.float32)
    mean = (x_BLD * inside_BLD).sum() / count
    variance = (jnp.square(x_BLD - mean) * inside_BLD).sum() / count
    return (x_BLD - mean) * jax.lax.rsqrt(variance + EPS)


class TaskLstm(nn.Module):
    """A biLSTM over the words of each sequence: x_BLD, mask i32 BL → both directions side by side, BLX."""

    cells: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
        # With its length given, the backward direction starts at each sequence's last word instead of at padding.
        lengths_B, directions = mask_BL.sum(1), []
        for name, reverse in (("forward", False), ("backward", True)):
            # Flax's cell has a kernel for each gate, [ih][ifgo], and computes them as one product.
            cell = nn.OptimizedLSTMCell(self.cells, dtype=self.dtype, parent=None)
            rnn = nn.RNN(cell, reverse=reverse, keep_order=True, name=name)
            directions.append(rnn(x_BLD, seq_lengths=lengths_B))
        return jnp.concatenate(directions, -1)


def mixed_layers(head: HeadConfig, layers: int) -> tuple[int, ...]:
    """Returns which states of a backbone of so many layers a head mixes or reads side by side (0: the embeddings),
    ascending."""
    # last-four and concat-last-four begin three layers below the last, the default here.
    first = {"words": 0, "all": 0, "top": layers, "second-to-last": layers - 1}.get(head.mix, layers - 3)
    count = {"all": layers + 1, "last-four": 4, "concat-last-four": 4}.get(head.mix, 1)
    return tuple(range(first, first + count))


class MixedFeatures(nn.Module):
    """The mix of layers, before or after the task's biLSTM, or both: Encoding with states → BLX."""

    head: HeadConfig
    rate: float
    dtype: DTypeLike

    @nn.compact
    def __call__(self, encoding: Encoding, dropout_key: DropoutKey | None) -> jax.Array:
        h, mask_BL, states = self.head, encoding.mask_BL, encoding.states
        layers = tuple(states[n] for n in mixed_layers(h, len(states) - 1))
        # Side by side the four count as one layer, 4D wide: of the mix only gamma is left to learn.
        if h.mix == "concat-last-four":
            layers = (jnp.concatenate(layers, -1),)
        # Where the mix joins the biLSTM's output alone, its input is the context-free layer: the words' embeddings.
        lstm_layers = states[:1] if h.place == "output" else layers
        x_BLD = ScalarMix(h.mix_norm, name="mix")(lstm_layers, mask_BL)
        # Dropout before and after each layer of the biLSTM; each place has a site of its own.
        x_BLD = dropout(x_BLD, self.rate, dropout_key, SITE)
        for n in range(h.lstm_layers if h.cells else 0):
            lstm = TaskLstm(h.cells, self.dtype, name=f"lstm_{n}" if n else "lstm")
            # SITE + 2 is the output mix's and SITE + 3 the head's own, so further layers go on from SITE + 4.
            site = SITE + 3 + n if n else SITE + 1
            x_BLD = dropout(lstm(whole_sequences(x_BLD), mask_BL), self.rate, dropout_key, site)
        if h.place != "input":
            # A mix of its own: which layers help may differ between input and output (section 3.2).
            output_BLD = ScalarMix(h.mix_norm, name="output_mix")(layers, mask_BL)
            x_BLD = jnp.concatenate([x_BLD, dropout(output_BLD, self.rate, dropout_key, SITE + 2)], -1)
        return x_BLD


class MixHead(LinearHead):
    """The fields of a head on mixed layers; `head` says which layers, and what follows the mix."""

    head: HeadConfig = HeadConfig()
    reads_states = True

    def layers_read(self, layers: int) -> tuple[int, ...]:
        mixed = mixed_layers(self.head, layers)
        # Where the mix joins the biLSTM's output alone, the biLSTM reads the words' embeddings.
        return tuple(sorted({*mixed, 0})) if self.head.place == "output" else mixed

    def mixed_features(self, encoding: Encoding, dropout_key: DropoutKey | None) -> jax.Array:
        """Returns the mixed features of each word, BLX."""
        return MixedFeatures(self.head, self.rate, self.dtype, name="features")(encoding, dropout_key)

    def feature_logits(self, equation: str, x: jax.Array) -> jax.Array:
        """Returns the logits of features whose width `_` depends on the mix."""
        sizes = {**self.sizes, "_": x.shape[-1]}
        return logits_linear(equation, sizes, self.kernel_init, self.dtype, name="out")(x)


class MixTagHead(MixHead):
    """A tag for each word: Encoding with states → float32 BLC, or CrfOutput if the tags are a chain."""

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array | CrfOutput:
        x_BLX = self.mixed_features(encoding, dropout_key)
        logits_BLC = self.feature_logits("BL_,_C->BLC", x_BLX)
        if not self.head.crf:
            return logits_BLC
        # Words without a tag are context before and after the sentence; the sentence alone is the chain. It is moved
        # to the front, where the CRF wants it, and back again. Where no word has a tag, all of them are the chain.
        tags_BL, mask_BL = batch["tags"], encoding.mask_BL
        own_BL = jnp.where((tags_BL >= 0).any(1, keepdims=True), mask_BL * (tags_BL >= 0), mask_BL)
        length, first_B1 = mask_BL.shape[1], own_BL.argmax(1)[:, None]
        place_1L = jnp.arange(length)[None]
        to_front_BL, back_BL = (place_1L + first_B1) % length, (place_1L - first_B1) % length
        answer = LinearChainCRF(self.sizes["C"], name="chain")(
            jnp.take_along_axis(logits_BLC, to_front_BL[:, :, None], 1),
            jnp.take_along_axis(tags_BL, to_front_BL, 1),
            jnp.take_along_axis(own_BL, to_front_BL, 1),
        )
        return CrfOutput(
            answer.loss_B,
            jnp.take_along_axis(answer.best_BL, back_BL, 1),
            jnp.take_along_axis(answer.marginals_BLC, back_BL[:, :, None], 1),
        )


class MixSpanHead(MixHead):
    """The logits of each word being the answer's start and its end: Encoding with states → float32 BLC with C = 2.

    The question and its context are one sequence, through which the task's biLSTM carries the question.

    Differs: the ELMo paper puts the mix into BiDAF with self-attention (section 4); here it goes into the biLSTM alone.
    """

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        return self.feature_logits("BL_,_C->BLC", self.mixed_features(encoding, dropout_key))


class MixChoiceHead(MixHead):
    """A logit for each alternative of an example: Encoding with states → float32 BA; -inf where the batch's `choices`
    is 0.

    A text and an alternative are one sequence, through which the task's biLSTM carries the text. The logit reads
    [max, mean] of each feature over the sequence's words.

    Differs: the ELMo paper has no multiple choice.
    """

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        if "choices" in batch:
            # A sequence for no alternative has no words, so that it does not count in `mix_norm` either.
            present_B = (batch["choices"].reshape(-1) > 0).astype(encoding.mask_BL.dtype)
            encoding = dataclasses.replace(encoding, mask_BL=encoding.mask_BL * present_B[:, None])
        x_BLX = self.mixed_features(encoding, repeat_for_choices(dropout_key, encoding.choices))
        text_BX = max_and_mean(x_BLX, encoding.mask_BL, self.dtype)
        text_BAX = text_BX.reshape(-1, encoding.choices, text_BX.shape[-1])
        # One dropout mask for all alternatives of an example, as in `ChoiceHead`.
        mask_BX = dropout(jnp.ones_like(text_BAX[:, 0]), self.rate, dropout_key, SITE + 3)
        return without_absent(self.feature_logits("BA_,_C->BAC", text_BAX * mask_BX[:, None])[..., 0], batch)


def max_and_mean(x_BLX: jax.Array, mask_BL: jax.Array, dtype: DTypeLike) -> jax.Array:
    """[max, mean] of each feature over the words of a sequence: BLX → BX, twice as wide."""
    inside_BLX = mask_BL[:, :, None] > 0
    max_BX = jnp.where(inside_BLX, x_BLX, -jnp.inf).max(1)
    # An empty text has no maximum: zeros instead of -inf.
    max_BX = jnp.where(inside_BLX.any(1), max_BX, 0.0)
    count_BX = jnp.maximum(mask_BL.sum(1), 1)[:, None]
    mean_BX = jnp.where(inside_BLX, x_BLX, 0.0).sum(1) / count_BX
    return jnp.concatenate([max_BX, mean_BX], -1).astype(dtype)


class MixPooledHead(MixHead):
    """A class, or a number, for each text or pair of texts: Encoding with states → float32 BC.

    A text is [max, mean] of each feature over its words. The two texts of a pair, u and v, are matched as
    [u, v, |u - v|, u·v] (Conneau et al. 2017, section 3.1); both pass through the same biLSTM.
    """

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        # A pair's two texts are two rows of the batch; each has its own masks.
        x_BLX = self.mixed_features(encoding, repeat_for_choices(dropout_key, encoding.choices))
        text_BX = max_and_mean(x_BLX, encoding.mask_BL, self.dtype)
        if self.head.pair:
            # The rows of a pair are consecutive: B·2 → B, 2.
            u, v = jnp.moveaxis(text_BX.reshape(-1, 2, text_BX.shape[-1]), 1, 0)
            text_BX = jnp.concatenate([u, v, jnp.abs(u - v), u * v], -1)
        return self.feature_logits("B_,_C->BC", dropout(text_BX, self.rate, dropout_key, SITE + 3))
