"""The options of the functions that look into models, which the command line and Python build. Needs no jax."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from contexture.analysis.pooling import Pool, SentencePool
from contexture.data.errors import DataError
from contexture.models.config import Sampling


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Which vectors `analysis.embed` computes.

    Args:
        layers: their numbers: 0 is without context, the last is the layer that heads read, a GPT-2's after the final
            norm; None: all.
        pool: "none": a vector for each unit. Else one for the sentence, without the axis of units: "mean" of all units;
            "mean-words" of all but a BERT's [CLS] and [SEP], which an ELMo and a GPT lack; "last" of the latter units;
            "cls", a BERT's [CLS]. The mean of no units is 0.
        batch: sentences at a time.
        stateful: for an ELMo: sentence n continues the hidden state of sentence n - batch, as in the original.
    """

    layers: tuple[int, ...] | None = None
    pool: Pool = "none"
    batch: int = 64
    stateful: bool = False


@dataclass(frozen=True, kw_only=True)
class VectorOptions:
    """How texts become vectors that are compared."""

    pool: SentencePool = "mean-words"
    """How the vectors of tokens become a sentence's. mean: of all tokens. mean-words: without a BERT's [CLS]
    and [SEP]. last: the last of these. cls: a BERT's [CLS]."""
    layers: str = "last"
    """The layer to take: last, a number from 0, which is the words' own, or mix: all of them with the weights that a
    fine-tuned run has learned (--head.mix all)."""
    whiten: bool = False
    """Whiten the vectors: mean 0, and the same variance in each direction (Su et al. 2021)."""
    dimensions: int = 0
    """Keep so many directions of whitened vectors, the ones with most variance; 0 keeps all."""
    batch: int = 64
    """Sentences at a time."""

    def __post_init__(self) -> None:
        if self.dimensions < 0:
            raise ValueError(f"dimensions={self.dimensions} is not a number of directions; 0 keeps all")
        if self.dimensions and not self.whiten:
            raise ValueError("dimensions= is for whitened vectors; give --whiten too, or leave --dimensions out")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is not a positive number of sentences")


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """How prompts are continued."""

    tokens: int = 0
    """The most tokens to generate; 0 is 64, or as many as the model takes."""
    temperature: float = 1.0
    """How freely tokens are sampled: 0 takes always the most probable one, 1 the model's own probabilities."""
    top_k: int = 0
    """Sample from the k most probable tokens; 0 is from all."""
    top_p: float = 1.0
    """Sample from the most probable tokens that together reach this probability (nucleus sampling); 1 is from all."""
    top_p_exclusive: bool = False
    """Leave out the token with which --top-p is reached, as GPT-2's code does."""
    stop: str | tuple[str, ...] | list[str] = ()
    """Texts before which the generation ends."""
    seed: int = 0
    """The seed of the random numbers; the same seed gives the same text."""
    batch: int = 16
    """Prompts at a time."""
    truncate: bool = False
    """Drop the first tokens of a prompt that is too long; the result counts them."""

    def __post_init__(self) -> None:
        _ = self.sampling

    @property
    def sampling(self) -> Sampling:
        """How tokens are sampled. Raises: ValueError for options out of range."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.top_p_exclusive)

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts before which the generation ends."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


@dataclass(frozen=True, kw_only=True)
class SensesOptions:
    """How the vectors of a word in its sentences are compared."""

    ignore_case: bool = False
    """Take the word in upper and lower case."""
    clusters: int = 0
    """The number of clusters where senses are not given; 0 chooses it by silhouette."""
    adjust_anisotropy: bool = False
    """Report similarities as the excess over two different words' too: the vectors of a layer lie in a narrow cone."""
    max_occurrences: int = 1000
    """The most occurrences to compute; of more, a random sample."""
    seed: int = 0
    """The seed of samples, clusters and t-SNE."""
    batch: int = 64
    """Sentences at a time."""

    def __post_init__(self) -> None:
        if self.clusters < 0 or self.clusters == 1:
            raise ValueError(f"clusters={self.clusters} is not a number of at least 2; 0 chooses it by silhouette")
        if self.max_occurrences < 2:
            raise ValueError(f"max-occurrences={self.max_occurrences} is not at least 2; there is nothing to compare")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed={self.seed} is not in [0, 2^31)")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is not a positive number of sentences")


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """How layers are probed."""

    layers: str = "all"
    """The layers that probes read. all: a mix of all, and mixes of the layers up to each one. each: a probe for each
    layer alone. Numbers such as `3` or `0,2`: one probe, on a mix of these; 0 is the words' own layer."""
    control: bool = True
    """Probe a control task too, with random labels for each word type; selectivity is the difference."""
    epochs: int = 20
    """The most epochs of a probe."""
    patience: int = 3
    """Epochs without a better F1 on dev after which a probe's training stops."""
    lr: float = 1e-3
    """The learning rate of Adam, which is constant."""
    batch: int = 64
    """Spans, or pairs of spans, of a training step."""
    seed: int = 0
    """The seed of initial parameters, the order of examples and the control task."""
    seeds: int = 1
    """How often each probe is trained, with seeds from --seed on. Of several, tables have the mean and the deviation of
    each figure, and the first seed's figures are drawn."""

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch", "seeds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is not a number of at least 1")
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"lr={self.lr} is not above 0")
        if not 0 <= self.seed <= 2**31 - self.seeds:
            last = f" to {self.seed + self.seeds - 1}" if self.seeds > 1 else ""
            raise ValueError(f"seed={self.seed}{last} is not in [0, 2^31); give a smaller --seed")


Layers: TypeAlias = str | int | Sequence[int]


def layer_numbers(layers: Layers, top: int, words: Sequence[str] = ("all", "last")) -> tuple[int, ...]:
    """Returns the numbers of layers in the order given: `"0,2"` → (0, 2), `-1` → (top,).

    Args:
        layers: a word, a number, or several numbers; 0 is the context-free layer, -1 the last.
        top: the number of the last layer.
        words: the words that may be given: "last" is the last layer, any other word means all layers.

    Raises:
        DataError: when the model lacks a layer.
    """
    if isinstance(layers, str):
        if layers in words:
            return (top,) if layers == "last" else tuple(range(top + 1))
        parts = layers.split(",")
        if not all(part.isascii() and part.isdecimal() and int(part) <= top for part in parts):
            raise DataError(
                f"layers={layers} are not {', '.join(words)}, or numbers from 0 to {top} with commas between"
            )
        return tuple(map(int, parts))
    numbers = [layers] if isinstance(layers, int) else list(layers)
    if not numbers or not all(isinstance(n, int) and -top - 1 <= n <= top for n in numbers):
        raise DataError(f"layers={layers} are not {', '.join(words)}, or numbers from 0 to {top}, or -1 to {-top - 1}")
    return tuple(n % (top + 1) for n in numbers)


def is_single(layers: Layers) -> bool:
    """Returns whether one layer alone is named, so that its vectors need no dim of layers."""
    return layers != "all" and "," not in layers if isinstance(layers, str) else isinstance(layers, int)
