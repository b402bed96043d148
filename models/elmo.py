"""ELMo's backbone (Peters et al. 2018): words from their characters, and a forward and a backward stack of LSTMs that
never see each other. The published code is bilm-tf's."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.config import ElmoConfig
from contexture.models.encoding import Encoding
from contexture.models.layers.char_cnn import CharCnn
from contexture.models.layers.dropout import DropoutKey
from contexture.models.layers.lstm import Lstm
from contexture.models.sharding import constrain

FIELDS = {"types": "i32 RW", "index": "i32 BL", "mask": "i32 BL"}
"""What the backbone reads of a batch of sentences."""
LANES = {"types": "i32 RW", "index": "i32 BL", "index_backward": "i32 BL"}
"""What it reads of a batch of lanes, running text in both directions."""
BEGIN, END = 1, 2
"""Rows of `types` that stand for begin and end of a sentence; row 0 stands for no word."""
FIRST_WORD = 3
DIRECTIONS = ("forward", "backward")


def kernel_init(config: ElmoConfig) -> Any:
    """Of a task's head: normal."""
    return nn.initializers.normal(0.02)


def sizes(config: ElmoConfig, classes: int = 2) -> dict[str, int]:
    """The letters of a configuration: {"V": 793471, "J": 512, "D": 1024, …}; C a head's classes."""
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
    """FLOPs of one step on B lanes of L words in both directions and R distinct words, three times the forward's
    products: per word and direction 16JU + 2UJ a layer and 2J for each word that the softmax compares with; per
    distinct word the filters over W places, the highway's 4F² a layer and the projection's 2FJ."""
    s, W = sizes(config), size["W"]
    F, J, U = (s[letter] for letter in "FJU")
    filters = sum((W - width + 1) * 2 * width * s["E"] * count for width, count in config.filters)
    per_type = filters + config.highway * 4 * F * F + 2 * F * J * (F != J)
    per_word = config.layers * (16 * J * U + 2 * U * J) + 2 * J * size.get("S", config.vocab)
    return 3.0 * (size["R"] * per_type + 2 * size["B"] * size["L"] * per_word)


def activation_floats(config: ElmoConfig, size: dict[str, int]) -> float:
    """About how many numbers a training step keeps: of each distinct word what the filters give at each place, of each
    word the gates of each layer and the softmax."""
    s = sizes(config)
    tokens = 2.0 * size["B"] * size["L"]
    per_type = s["F"] * (size["W"] + 6.0 * config.highway)
    return size["R"] * per_type + tokens * (config.layers * 12.0 * s["U"] + 2.0 * size.get("S", config.vocab))


class BiLstm(nn.Module):
    """Two stacks, each over an input of its own: x_BLJ of each direction → its layers, the input first."""

    config: ElmoConfig

    @nn.compact
    def __call__(
        self, inputs: tuple[jax.Array, ...], carries: bool, last_B: jax.Array | None, dropout_key: DropoutKey | None
    ) -> list[list[jax.Array]]:
        c, found = self.config, []
        for number, (name, x_BLJ) in enumerate(zip(DIRECTIONS, inputs, strict=True)):
            clips = c.cell_clip, c.projection_clip
            stack = Lstm(sizes(c), *clips, c.skip, c.dropout, jnp.dtype(c.dtype), name=name)
            found.append([x_BLJ, *stack(x_BLJ, carries, last_B, dropout_key, number * c.layers)])
        return found


class Elmo(nn.Module):
    """Sentences: types i32 RW, index i32 BL (the row of types that is each word), mask i32 BL → Encoding of both
    directions side by side, pooled by the mean over words. Begin and end of the sentence are run through the stacks and
    cut off; states are the words twice, then each layer.

    Lanes (where the batch holds index_backward i32 BL): each direction reads a running text of its own, goes on from
    the carry, and leaves it what comes next; the Encoding holds the two side by side. The carry is the mutable
    collection `carry`, begun with zeros; sentences have none unless `stateful`.

    Differs: the original keeps states between the batches of inference too; here a sentence is encoded alone, unless
    asked for.
    """

    config: ElmoConfig

    @nn.compact
    def __call__(
        self, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None, *, states: bool = False
    ) -> Encoding:
        c, size, dtype = self.config, sizes(self.config), jnp.dtype(self.config.dtype)
        words_RJ = CharCnn(size, c.filters, c.activation, c.highway, dtype, name="embeddings")(batch["types"])
        stacks = BiLstm(c, name="layers")
        carries = self.is_mutable_collection("carry")
        if "index_backward" in batch:
            inputs = tuple(constrain(words_RJ[batch[name]], "BLJ") for name in ("index", "index_backward"))
            every = _side_by_side(stacks(inputs, carries, None, dropout_key))
            mask_BL, pooled_BD = jnp.ones_like(batch["index"]), None
        else:
            mask_BL, length = batch["mask"], batch["index"].shape[1]
            index_BL, back_BL, last_B = _with_boundaries(batch["index"], mask_BL)
            x_BLJ, back_BLJ = constrain(words_RJ[index_BL], "BLJ"), back_BL[:, :, None]
            inputs = x_BLJ, jnp.take_along_axis(x_BLJ, back_BLJ, 1)
            forward, backward = stacks(inputs, carries and c.stateful, last_B, dropout_key)
            backward = [jnp.take_along_axis(x_BLJ, back_BLJ, 1) for x_BLJ in backward]
            every = [x_BLD[:, 1 : length + 1] for x_BLD in _side_by_side([forward, backward])]
            share_BL = mask_BL / jnp.maximum(mask_BL.sum(1), 1)[:, None]
            pooled_BD = jnp.einsum("BLD,BL->BD", every[-1], share_BL.astype(dtype))
        return Encoding(every[-1], mask_BL, pooled_BD, tuple(every) if states else ())


def _side_by_side(directions: list[list[jax.Array]]) -> list[jax.Array]:
    return [constrain(jnp.concatenate(both, -1), "BLD") for both in zip(*directions, strict=True)]


def _with_boundaries(index_BL: jax.Array, mask_BL: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Words i32 BL → with begin and end around them, two longer: (index, the places read backwards, the last place)."""
    last_B = mask_BL.sum(1) + 1
    place = jnp.arange(index_BL.shape[1] + 2)[None]
    index_BL = jnp.pad(index_BL * mask_BL, [(0, 0), (1, 1)])
    index_BL = jnp.where(place == 0, BEGIN, jnp.where(place == last_B[:, None], END, index_BL))
    return index_BL, jnp.maximum(last_B[:, None] - place, 0), last_B
