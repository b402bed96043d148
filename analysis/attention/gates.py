"""What an ELMo has in place of attention: the gates of its LSTMs at each word, and the layers that its task mixes."""

from functools import partial
from typing import TypedDict

import jax
import numpy as np

from contexture.data.errors import DataError
from contexture.data.layouts import Batch, elmo_lines
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.checked_text import check_characters
from contexture.data.tokenizers.word_level import word_tokenizer
from contexture.models.config import ElmoConfig, HeadConfig
from contexture.models.elmo import DIRECTIONS
from contexture.models.families import build
from contexture.models.heads.layer_mix import learned_mixes, mixed_layers
from contexture.models.model import Model, Outputs
from contexture.models.shapes import Params

GATES = ("input", "forget", "output")


class WordMix(TypedDict):
    """A learned mix of layers.

    Attributes:
        place: "input" or "output" of the head's biLSTM.
        layers: the numbers of the layers, 0 for the context-free one.
        weights: their weights, which sum to 1.
        gamma: the factor of the sum.
        shares: float32 [layer, word]: weight · length of the layer's vector, as a share of the sum over layers; None
            if each layer is normalised before the mix.
    """

    place: str
    layers: list[int]
    weights: list[float]
    gamma: float
    shares: np.ndarray | None


class WordGates(TypedDict):
    """The gates of an ELMo at each word of a text, and the mixes of layers that its run has learned.

    Attributes:
        words: as the model reads them.
        directions: forward, backward.
        layers: the numbers of the layers, from 1.
        gates: input, forget, output.
        means: float32 [direction, layer, gate, word]: the mean over a layer's cells, between 0 (closed) and 1 (open).
        mixes: empty if the run has learned none.
    """

    words: list[str]
    directions: list[str]
    layers: list[int]
    gates: list[str]
    means: np.ndarray
    mixes: list[WordMix]


def word_gates(model: Model, params: Params, tokenizer: Tokenizer, text: str, head: HeadConfig) -> WordGates:
    """Computes the gates of an ELMo at each word of a text, which is read as one sentence.

    Args:
        head: the run's, which says how its layers are mixed.

    Raises:
        DataError: when the model is no ELMo, or the text has no word.
    """
    config = model.config
    if not isinstance(config, ElmoConfig):  # whose LSTMs these are
        raise DataError(f"a model of the family {config.family} has no LSTMs; gates are those of an ELMo")
    check_characters(text, "text")
    words = word_tokenizer(tokenizer).words(text)
    if not words:
        raise DataError("text= is empty; give a text")
    count = len(words)
    states_NLD, gates = jax.device_get(_read(config, params, elmo_lines([words])))
    means = np.empty((len(DIRECTIONS), config.layers, len(GATES), count), np.float32)
    for number, direction in enumerate(DIRECTIONS):
        for layer in range(config.layers):
            # Step 0 reads <S>, or </S> in the backward direction, whose steps run from the end of the sentence.
            own_LG = gates["backbone"]["layers"][direction][f"layer_{layer}"][0][1 : count + 1, 0]
            means[number, layer] = (own_LG if direction == "forward" else own_LG[::-1]).T
    return {
        "words": words,
        "directions": [*DIRECTIONS],
        "layers": list(range(1, config.layers + 1)),
        "gates": [*GATES],
        "means": means,
        "mixes": _mixes(params, head, states_NLD[:, :count]),
    }


def _mixes(params: Params, head: HeadConfig, states_NLD: np.ndarray) -> list[WordMix]:
    layers = list(mixed_layers(head, len(states_NLD) - 1)) if head.mixes else []
    lengths_NL = np.linalg.norm(states_NLD.astype(np.float32), axis=-1)
    mixes: list[WordMix] = []
    for place, mix in learned_mixes(params).items():
        shares_NL = np.array(mix["weights"], np.float32)[:, None] * lengths_NL[layers]
        # 1e-30: a word whose vectors are all zero has no shares.
        shares_NL /= np.maximum(shares_NL.sum(0), 1e-30)
        mixes.append({"place": place, "layers": layers, **mix, "shares": None if head.mix_norm else shares_NL})
    return mixes


@partial(jax.jit, static_argnums=0)
def _read(config: ElmoConfig, params: Params, batch: Batch) -> tuple[jax.Array, Params]:
    """Returns the states of the first sentence, NLD, and the gates that the LSTMs record in a collection (`Lstm`)."""
    outputs, variables = build(config, ()).apply({"params": params}, batch, states=True, mutable=["gates"])
    assert isinstance(outputs, Outputs)
    return jax.numpy.stack([x_BLD[0] for x_BLD in outputs.encoding.states]), variables["gates"]
