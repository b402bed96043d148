"""ELMo's backbone (Peters et al. 2018): word vectors from characters, and a forward and a backward stack of LSTMs that
never see each other. The published code is bilm-tf."""

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.config import ElmoConfig
from contexture.models.encoding import Encoding
from contexture.models.layers.blocks import Init
from contexture.models.layers.char_cnn import CharCnn
from contexture.models.layers.dropout import DropoutKey
from contexture.models.layers.lstm import Lstm
from contexture.models.layers.packed_rows import means, reversed_places, turned
from contexture.models.sharding import constrain

BEGIN, END = 1, 2
"""Rows of `types` for the begin and the end of a sentence; row 0 is no word."""
FIRST_WORD = 3
DIRECTIONS = ("forward", "backward")


def kernel_init(config: ElmoConfig) -> Init:
    """Normal; for the heads of tasks."""
    return nn.initializers.normal(0.02)


def sizes(config: ElmoConfig, classes: int = 2) -> dict[str, int]:
    """Returns a configuration's sizes by letter: {"V": 793471, "J": 512, "D": 1024, …}; C is a head's classes."""
    return {
        "V": config.vocab,
        "E": config.char_width,
        "F": sum(count for _, count in config.filters),
        "J": config.projection,
        "D": 2 * config.projection,
        "U": config.cells,
        "G": 4,
        "N": config.layers,
        "C": classes,
    }


def training_flops(config: ElmoConfig, size: dict[str, int]) -> float:
    """3·(R·(filters + highways + projection) + 2·B·L·(N·18JU + 2J·S)): FLOPs of one step on B lanes of L words.

    Of each of the R distinct words: the filters over all W characters, 4F² for a highway layer, 2FJ for the projection.
    Of each word in each direction: 16JU + 2UJ for a layer, 2J for each of the S words that the softmax compares. The
    backward pass costs twice the forward.
    """
    s, W = sizes(config), size["W"]
    F, J, U = (s[letter] for letter in "FJU")
    filters = sum((W - width + 1) * 2 * width * s["E"] * count for width, count in config.filters)
    # No projection layer where the filters are already J wide, as in CharCnn.
    per_type = filters + config.highway * 4 * F * F + 2 * F * J * (F != J)
    # Without negatives (S) the softmax is over the whole vocabulary.
    per_word = config.layers * (16 * J * U + 2 * U * J) + 2 * J * size.get("S", config.vocab)
    return 3.0 * (size["R"] * per_type + 2 * size["B"] * size["L"] * per_word)


def activation_floats(config: ElmoConfig, size: dict[str, int]) -> float:
    """R·F·(W + 6·highways) + 2BL·(N·12U + 2S): about how many activations a training step holds at once.

    These are the filters' outputs at each character of the distinct words, and each word's gates and logits.
    """
    s = sizes(config)
    # Both directions keep their own gates and logits.
    tokens = 2.0 * size["B"] * size["L"]
    per_type = s["F"] * (size["W"] + 6.0 * config.highway)
    return size["R"] * per_type + tokens * (config.layers * 12.0 * s["U"] + 2.0 * size.get("S", config.vocab))


class BiLstm(nn.Module):
    """Two independent LSTM stacks: (x_BLJ forward, x_BLJ backward) → the layers of each, its input first."""

    config: ElmoConfig

    @nn.compact
    def __call__(
        self,
        inputs: tuple[jax.Array, ...],
        carries: bool,
        last_B: jax.Array | None,
        dropout_key: DropoutKey | None,
        keeps_BL: jax.Array | None = None,
    ) -> list[list[jax.Array]]:
        c, directions = self.config, []
        for number, (name, x_BLJ) in enumerate(zip(DIRECTIONS, inputs, strict=True)):
            clips = c.cell_clip, c.projection_clip
            stack = Lstm(sizes(c), *clips, c.skip, c.dropout, jnp.dtype(c.dtype), name=name)
            # Dropout's sites: one a layer, the backward stack's behind the forward's.
            directions.append([x_BLJ, *stack(x_BLJ, carries, last_B, dropout_key, number * c.layers, keeps_BL)])
        return directions


class Elmo(nn.Module):
    """Sentences or lanes → Encoding, with both directions side by side (D = 2J).

    The states are the words' vectors twice, then each layer.

    Sentences: types i32 RW, index i32 BL (each word's row of types), mask i32 BL; pooled as the mean over words. Begin
    and end of the sentence run through the stacks too and are cut off again.

    Sentences that share lanes (`layers.packed_rows`): index i32 XY holds begin and end of each, at the places -1 and n
    of its n words, and the states have them. The state starts again from zeros at each begin.

    Lanes (batches with index_backward i32 BL): each direction reads a running text of its own. It starts from the carry
    and leaves its final state there. The carry is the mutable collection `carry`, zeros at first. Sentences have none
    unless `stateful`.

    Differs: the original keeps states between batches at inference too; here a sentence is encoded alone unless
    `stateful` is set.
    """

    config: ElmoConfig

    @nn.compact
    def __call__(
        self, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None, *, states: bool = False
    ) -> Encoding:
        c, size, dtype = self.config, sizes(self.config), jnp.dtype(self.config.dtype)
        # The character CNN runs once for each distinct word of the batch, not for each occurrence.
        words_RJ = CharCnn(size, c.filters, c.activation, c.highway, dtype, name="embeddings")(batch["types"])
        stacks = BiLstm(c, name="layers")
        # Whoever calls decides: apply(…, mutable=["carry"]) gets the final states back, evaluation without it has none.
        carries = self.is_mutable_collection("carry")
        if "index_backward" in batch:
            inputs = tuple(_look_up(words_RJ, batch[name]) for name in ("index", "index_backward"))
            # The backward lane's text comes from the data already reversed.
            layers = _concat_directions(stacks(inputs, carries, None, dropout_key))
            mask_BL, pooled_BD = jnp.ones_like(batch["index"]), None
        else:
            packed, last_B, keeps_BL, mask_BL = "packs" in batch, None, None, batch["mask"]
            if packed:
                index_BL, reversed_BL = batch["index"], reversed_places(batch)
                # Reversed in its own place, a sentence has its border where it had it: one mask serves both directions.
                keeps_BL = batch["positions"] >= 0
                # A sentence with a row of its own has its begin at place 0.
                dropout_key = dropout_key and replace(dropout_key, positions_XY=batch["positions"] + 1)
            else:
                index_BL, reversed_BL, last_B = _add_boundaries(batch["index"], mask_BL)
            x_BLJ = _look_up(words_RJ, index_BL)
            # Each sentence is reversed within its own length, so that the backward stack starts at its end and not at
            # padding. The same gather puts its outputs back in order.
            inputs = x_BLJ, turned(x_BLJ, reversed_BL)
            forward, backward = stacks(inputs, carries and c.stateful and not packed, last_B, dropout_key, keeps_BL)
            layers = _concat_directions([forward, [turned(x_BLJ, reversed_BL) for x_BLJ in backward]])
            if not packed:
                # Begin and end are context for the words, and no words themselves.
                layers = [x_BLD[:, 1:-1] for x_BLD in layers]
            # The mean is over the words of a sentence, and of no boundary.
            pooled_BD = means(layers[-1], batch)
        # Layer 0 is the words' vectors twice: both stacks read the same ones, and all states have the width D.
        return Encoding(layers[-1], mask_BL, pooled_BD, tuple(layers) if states else ())


def _look_up(words_RJ: jax.Array, index_BL: jax.Array) -> jax.Array:
    """Returns the words' vectors, BLJ."""
    # In float32 for the gradient: a frequent word sums hundreds of terms, of which bfloat16 would lose the small ones,
    # and a GPU has fast atomic additions for float32 alone.
    wide = jnp.promote_types(words_RJ.dtype, jnp.float32)
    return constrain(words_RJ.astype(wide)[index_BL].astype(words_RJ.dtype), "BLJ")


def _concat_directions(directions: list[list[jax.Array]]) -> list[jax.Array]:
    """Two lists of layers BLJ → one list of BLD."""
    return [constrain(jnp.concatenate(both, -1), "BLD") for both in zip(*directions, strict=True)]


def _add_boundaries(index_BL: jax.Array, mask_BL: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Adds begin and end around the words, L + 2 in all → (index, the places in reverse order, the last place).

    Two words of four: [a, b, 0, 0] → ([BEGIN, a, b, END, 0, 0], [3, 2, 1, 0, 4, 5], 3).
    """
    last_B = mask_BL.sum(1) + 1
    place = jnp.arange(index_BL.shape[1] + 2)[None]
    # Padding reads row 0 of types, which is no word; the new first and last columns are filled below.
    index_BL = jnp.pad(index_BL * mask_BL, [(0, 0), (1, 1)])
    index_BL = jnp.where(place == 0, BEGIN, jnp.where(place == last_B[:, None], END, index_BL))
    return index_BL, jnp.where(place > last_B[:, None], place, last_B[:, None] - place), last_B
