"""The sizes and options of each model family. Plain dataclasses: importing this costs nothing and needs no jax."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

Quantization: TypeAlias = Literal["none", "int8", "fp8"]
"""The numbers that factors of the layers' products are rounded to."""
WORD_CHARS = 50
"""Character ids of a word that an ELMo reads: its first 48 bytes, begin and end."""
MAX_SIZE = 2**31 - 1
"""The largest size of an array's dim: arrays are indexed with 32 bits."""
MAX_LAYERS = 10_000
MAX_PARAMETERS = 10**13


def _option(name: str) -> str:
    """Returns a field as the command line calls it: `init_std` → model.init-std."""
    return f"model.{name.replace('_', '-')}"


def require_positive(config: object, *names: str) -> None:
    """Raises: ValueError if a size is not positive, or larger than any model has."""
    for name in names:
        value, limit = getattr(config, name), MAX_LAYERS if name in ("layers", "highway") else MAX_SIZE
        if value < 1:
            raise ValueError(f"{_option(name)}={value} is not a positive number")
        if value > limit:
            # Python refuses to print integers of more than 4,300 digits.
            shown = str(value) if abs(value) < 10**20 else "a number of more than 20 digits"
            raise ValueError(f"{_option(name)}={shown} is more than {limit:,}; give a size that a model can have")


def require_at_least_0(config: object, *names: str) -> None:
    """Raises: ValueError if a value is negative, infinite or no number."""
    for name in names:
        # Comparisons with NaN are false, so it is refused too.
        if not 0 <= getattr(config, name) < math.inf:
            raise ValueError(f"{_option(name)}={getattr(config, name)} is not at least 0")


def require_rate(config: object, *names: str) -> None:
    """Raises: ValueError if a dropout rate is not in [0, 1)."""
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{_option(name)}={getattr(config, name)} is not in [0, 1)")


def require_fraction(config: object, *names: str) -> None:
    """Raises: ValueError if a value is not in (0, 1)."""
    for name in names:
        if not 0.0 < getattr(config, name) < 1.0:
            raise ValueError(f"{_option(name)}={getattr(config, name)} is not above 0 and below 1")


def require_parameters_fit(count: int) -> None:
    """Raises: ValueError for more parameters than any machine holds."""
    if count > MAX_PARAMETERS:
        raise ValueError(
            f"the model has about {count:.1e} parameters, more than {MAX_PARAMETERS:.0e}; lower model.vocab, "
            "model.layers or its widths"
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What the configuration of every family answers. A family has fields in place of some of these values."""

    family: ClassVar[str]
    """The family's name, as run.json has it."""
    is_causal: ClassVar[bool] = False
    """Whether a token's vector depends on no later one."""
    is_recurrent: ClassVar[bool] = False
    """Whether its layers are LSTMs, with gates, that can carry their state from batch to batch."""
    attends: ClassVar[bool] = False
    """Whether its tokens meet in attention alone, so that devices may have a part of a sequence each."""
    generates: ClassVar[bool] = False
    """Whether `models.decode` writes on from a prompt with it."""

    # Without annotations, so that they are no fields of every family.
    vocab = 0
    # How many states a token has above its embedding, which is state 0. `backbone/layers` has as many rows, if any.
    layers = 0
    # Whether the softmax of a language model uses the backbone's table of tokens.
    tied = True
    # The longest sequence: any.
    length = MAX_SIZE
    head_dropout = 0.0
    dtype = "float32"
    # Whether the state is carried from sentence to sentence.
    stateful = False
    # How many keys a position sees in every second layer; 0 is all.
    local_window = 0

    @property
    def width(self) -> int:
        """Width of a token's vector in each layer."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """The fields that BERT and GPT share."""

    attends: ClassVar[bool] = True
    vocab: int
    """The size of the vocabulary: rows of the token table."""
    length: int
    """The longest sequence that the model reads: rows of the position table."""
    layers: int = 12
    """How many layers there are."""
    hidden: int = 768
    """The width of a token's vector in each layer."""
    heads: int = 12
    """How many attention heads a layer has; they share the width."""
    ffn: int = 3072
    """The inner width of the feed-forward."""
    dropout: float = 0.1
    """Dropout rate on the embeddings and on each sublayer's output."""
    attention_dropout: float = 0.1
    """Dropout rate on the attention weights."""
    head_dropout: float = 0.1
    """Dropout rate on the input of a task's head."""
    eps: float
    """The epsilon of every layer norm."""
    init_std: float = 0.02
    """The standard deviation of the initial kernels and tables."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype of the computation; parameters, norms, softmaxes and losses stay in float32."""
    unroll: int = 0
    """How many layers an iteration of the layer loop has. 1 makes the smallest program; 0 is no loop on a CPU, which is
    faster there, and 1 elsewhere."""
    remat: Literal["auto", "none", "attention", "dots", "offload", "full"] = "auto"
    """What the backward pass recomputes to save memory. none: nothing. attention: attention's weights, of the
    reference; the kernels keep none. dots: all but matrix products. offload: the same, with these kept in the host's
    memory. full: everything. auto: none on a CPU, else the first of none, dots and full that leaves room. All but none
    and attention need a loop."""
    attention: Literal["auto", "reference", "pallas", "cudnn"] = "auto"
    """What computes attention. reference: arrays of all weights. pallas: our kernels for TPU and GPU, which never store
    them, with the same dropout. cudnn: NVIDIA's, without dropout. auto: the best for the device."""
    quantization: Quantization = "none"
    """The numbers that the layers' products are computed with, scaled by row and column; none: as dtype says. int8: for
    TPUs from v5e, A100 and later; the kernels' gradients stay in dtype. fp8: for H100 and later."""

    def __post_init__(self) -> None:
        require_positive(self, "vocab", "length", "layers", "hidden", "heads", "ffn")
        # Tables, attention's four kernels and the feed-forward's two; the rest is small in comparison.
        rows = self.vocab + self.length + self.layers * (4 * self.hidden + 2 * self.ffn)
        require_parameters_fit(rows * self.hidden)
        # The heads share the width: each has hidden/heads.
        if self.hidden % self.heads:
            raise ValueError(
                f"model.hidden={self.hidden} is not a multiple of model.heads={self.heads}; change one of them"
            )
        require_rate(self, "dropout", "attention_dropout", "head_dropout")
        require_fraction(self, "eps", "init_std")
        if self.unroll < 0 or (self.unroll and self.layers % self.unroll):
            raise ValueError(
                f"model.unroll={self.unroll} does not divide model.layers={self.layers}; "
                "0 is what the device does best, 1 a loop"
            )
        # Without a loop XLA sees both copies of the forward pass side by side, and merges them again.
        if self.remat in ("dots", "offload", "full") and self.unroll == self.layers > 1:
            raise ValueError(
                f"model.remat={self.remat} needs the layer loop that model.unroll={self.unroll} takes away; "
                "give --model.unroll 1"
            )

    @property
    def width(self) -> int:
        """Width of a token's vector in each layer."""
        return self.hidden


@dataclass(frozen=True, kw_only=True)
class BertConfig(TransformerConfig):
    """BERT (Devlin et al. 2018). The defaults are bert-base-uncased. Kernels and tables are initialised from a normal
    distribution truncated at two standard deviations."""

    # vocab and length: uncased_L-12_H-768_A-12 (google-research/bert), whose other sizes are TransformerConfig's.
    family: ClassVar[str] = "bert"
    vocab: int = 30522
    length: int = 512
    segments: int = 2
    """How many token types there are. Ids beyond the last are read as the last, so that with 1 both texts of a pair
    have the same type."""
    gelu: Literal["erf", "tanh", "relu"] = "erf"
    """The activation of the feed-forward. erf: the first checkpoints and most ports. tanh: the original's code since
    February 2019. relu: ERNIE 1.0."""
    eps: float = 1e-12
    tied: bool = True
    """Whether the masked LM's softmax uses the token table; without it, it has a table of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "segments")
        require_parameters_fit(self.segments * self.hidden)


@dataclass(frozen=True, kw_only=True)
class GptConfig(TransformerConfig):
    """GPT (Radford et al. 2018, 2019; Brown et al. 2020). The defaults are GPT-2 124M."""

    family: ClassVar[str] = "gpt"
    is_causal: ClassVar[bool] = True
    generates: ClassVar[bool] = True
    vocab: int = 50257
    length: int = 1024
    eps: float = 1e-5
    norm: Literal["pre", "post"] = "pre"
    """Where layer norms stand. pre: before each sublayer, and once more at the end (GPT-2, GPT-3). post: after each
    sublayer's sum (GPT-1)."""
    init: Literal["paper", "released"] = "paper"
    """How kernels that write into the residual stream are initialised. paper: smaller by 1/sqrt(2·layers). released: as
    all others, as in the published code."""
    position_std: float = 0.01
    """The standard deviation of the initial position table (GPT-1: 0.02)."""
    gelu: Literal["tanh", "erf", "relu"] = "tanh"
    """The activation of the feed-forward; the originals have gelu's tanh form."""
    tied: bool = True
    """Whether the softmax uses the token table; without it, it has a table of its own."""
    biases: bool = True
    """Whether linear maps and norms have biases."""
    local_window: int = 0
    """How many keys a position sees in every second layer, itself counted (GPT-3's banded layers); 0 is all before
    it."""
    one_table: bool = False
    """Join tokens and positions in one table, as GPT-1's fine-tuning code. Dropout falls on that table, once a step,
    wherever it is used, and the softmax includes the positions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fraction(self, "position_std")
        if self.local_window < 0:
            raise ValueError(f"model.local-window={self.local_window} is not a number of keys (0: all)")
        # One table has rows for tokens and for positions: a second table for the softmax would leave nothing to join.
        if self.one_table and not self.tied:
            raise ValueError("model.one-table is the table of the softmax too; leave --model.no-tied out")


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(ModelConfig):
    """ELMo's biLM (Peters et al. 2018). The defaults are the published model."""

    # The released model's options.json: 2048 filters, and cells projected to 512 in each direction.
    family: ClassVar[str] = "elmo"
    is_recurrent: ClassVar[bool] = True
    vocab: int = 793471
    """How many words the training softmax has; any word can be read, since its vector comes from characters."""
    char_width: int = 16
    """The width of a character's vector."""
    filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    """The convolution filters over characters: pairs of a width and how many there are."""
    activation: Literal["relu", "tanh"] = "relu"
    """The activation of the filters."""
    highway: int = 2
    """How many highway layers follow the filters."""
    layers: int = 2
    """How many LSTM layers there are in each direction."""
    cells: int = 4096
    """How many cells an LSTM layer has in each direction."""
    projection: int = 512
    """The width of an LSTM layer's projected output, and of a word's vector."""
    cell_clip: float = 3.0
    """The largest magnitude of a cell's value; 0 is no limit."""
    projection_clip: float = 3.0
    """The largest magnitude of the projected output; 0 is no limit."""
    skip: bool = True
    """Whether each layer but the first adds its input to its output."""
    dropout: float = 0.1
    """Dropout rate on the input of each LSTM layer and on the softmax's input."""
    head_dropout: float = 0.5
    """Dropout rate on the input of a task's head."""
    stateful: bool = False
    """Start each sentence from the state that the same row of the previous batch ended in, as the original's
    inference."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype of the computation; parameters, cells, softmaxes and losses stay in float32."""

    def __post_init__(self) -> None:
        require_positive(self, "vocab", "char_width", "layers", "cells", "projection")
        # 0 highway layers are fine.
        if self.highway > 0:
            require_positive(self, "highway")
        # A filter must fit into a word's characters.
        if not self.filters or any(not 1 <= width <= WORD_CHARS or count < 1 for width, count in self.filters):
            raise ValueError(
                f"model.filters={self.filters} are not pairs of a width from 1 to {WORD_CHARS} and how many there are"
            )
        # 0 switches each of these off.
        require_at_least_0(self, "highway", "cell_clip", "projection_clip")
        filters = sum(count for _, count in self.filters)
        characters = sum(width * count for width, count in self.filters) * self.char_width
        # Carry and transform are filters × filters in each highway layer, the
        # projection after them filters × projection.
        highways = filters * (2 * self.highway * filters + self.projection)
        # 4 gates from input and hidden state, and the projection: (4·2 + 1)·cells·projection.
        lstms = 2 * self.layers * self.cells * (9 * self.projection)
        require_parameters_fit(characters + highways + lstms + self.vocab * self.projection)
        require_rate(self, "dropout", "head_dropout")

    @property
    def width(self) -> int:
        """Width of a word's vector in each layer: both directions."""
        return 2 * self.projection


@dataclass(frozen=True, kw_only=True)
class VectorsConfig(ModelConfig):
    """Static word vectors, as `contexture import vectors` reads them. The defaults are GloVe's 6B.300d."""

    family: ClassVar[str] = "vectors"
    vocab: int = 400_002
    """Rows of the table: one for padding, one for words without a vector, then a row a word."""
    hidden: int = 300
    """The width of a word's vector."""
    head_dropout: float = 0.5
    """Dropout rate on the input of a task's head."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype of the computation; parameters and losses stay in float32."""

    def __post_init__(self) -> None:
        require_positive(self, "vocab", "hidden")
        require_parameters_fit(self.vocab * self.hidden)
        require_rate(self, "head_dropout")

    @property
    def width(self) -> int:
        """Width of a word's vector."""
        return self.hidden


Mix: TypeAlias = Literal["off", "all", "last-four", "concat-last-four", "top", "second-to-last", "words"]
"""Which layers make the vector of each word (`HeadConfig.mix`)."""


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """What a task's head reads from the backbone (Peters et al. 2018, section 3.3)."""

    mix: Mix = "off"
    """Which layers make the vector of each word. off: the last layer as it is. all, last-four: a learned mix of all
    layers (the words' embeddings too), or of the last four. concat-last-four: the last four, side by side. top,
    second-to-last, words: one layer alone, or the words' embeddings. All but `off` have a learned scale."""
    mix_norm: bool = False
    """Whether each layer is normalised over all words of a batch before the mix, as in the original. Outputs then
    depend a little on the batch, and a training step on optim.accumulate."""
    mix_l2: float = 0.0
    """The coefficient of the L2 penalty on the mixing weights."""
    place: Literal["input", "output", "both"] = "input"
    """Where the mix goes. input: into the task's biLSTM. output: beside its output, while it reads the words'
    embeddings. both: into both."""
    cells: int = 0
    """How many cells the task's biLSTM has in each direction; 0 is no biLSTM."""
    lstm_layers: int = 1
    """How many layers the task's biLSTM has."""
    crf: bool = False
    """Whether tags are scored as a chain, with a conditional random field."""
    pair: bool = False
    """Whether an example is a pair of texts to match. It is known from the examples, and not to be given."""

    def __post_init__(self) -> None:
        if self.cells < 0:
            raise ValueError(f"head.cells={self.cells} is not a number of cells (0: no biLSTM)")
        if self.lstm_layers < 1:
            raise ValueError(f"head.lstm-layers={self.lstm_layers} is not a positive number of layers")
        if not 0.0 <= self.mix_l2 < math.inf:
            raise ValueError(f"head.mix-l2={self.mix_l2} is not a number from 0 on")
        if self.mix == "off":
            # Without a mix these fields mean nothing: one that was given is an error, and not passed over.
            defaults = (
                *(("mix_norm", False), ("mix_l2", 0.0), ("place", "input"), ("cells", 0), ("lstm_layers", 1)),
                ("crf", False),
            )
            for name, default in defaults:
                if getattr(self, name) != default:
                    raise ValueError(
                        f"head.{name.replace('_', '-')}={getattr(self, name)} has no meaning for head.mix=off; "
                        "give --head.mix all, or another choice of layers"
                    )
        elif not self.mixes and self.mix_l2:
            raise ValueError(f"head.mix-l2={self.mix_l2} has no meaning for head.mix={self.mix}, which mixes nothing")
        elif self.place != "input" and not self.cells:
            raise ValueError(f"head.place={self.place} wants a biLSTM of the task's own; give --head.cells")
        elif self.lstm_layers != 1 and not self.cells:
            raise ValueError(f"head.lstm-layers={self.lstm_layers} wants the size of the biLSTM; give --head.cells")

    @property
    def mixes(self) -> bool:
        """Returns whether the weights of several layers are learned."""
        return self.mix in ("all", "last-four")

    @property
    def fewest_layers(self) -> int:
        """Returns how many layers a backbone has at least, for there to be those that are read."""
        return {"last-four": 4, "concat-last-four": 4, "second-to-last": 2}.get(self.mix, 0)


@dataclass(frozen=True)
class Sampling:
    """How the next token is sampled from the model's probabilities.

    temperature  divides the logits; 0: always the most probable token
    top_k        samples among the k most probable tokens (0: all); those that tie with the last are kept
    top_p        samples among the most probable tokens that together reach probability p (1: all), after top_k
    exclusive    leaves out the token with which they reach p, as the original's code; else it is kept
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    exclusive: bool = False

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        if not self.temperature >= 0.0:
            raise ValueError(
                f"temperature={self.temperature} is not at least 0, which takes always the likeliest token"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top-p={self.top_p} is not above 0 and at most 1")
        if self.top_k < 0:
            raise ValueError(f"top-k={self.top_k} is not at least 0")
