"""What a model is made of. Plain dataclasses: importing this costs nothing and needs no jax."""

import math
from dataclasses import dataclass
from typing import Literal

LARGEST = 2**31 - 1
"""Of any size: arrays are counted in 32 bits."""
MOST_LAYERS = 10_000
MOST_PARAMETERS = 10**13


def check_sizes(config: object, *names: str) -> None:
    """Raises: ValueError for a size that is not positive, or larger than any model has."""
    for name in names:
        value, limit = getattr(config, name), MOST_LAYERS if name in ("layers", "highway") else LARGEST
        option = f"model.{name.replace('_', '-')}"
        if value < 1:
            raise ValueError(f"{option}={value} is not a positive number")
        if value > limit:
            raise ValueError(f"{option}={_short(value)} is more than {limit:,}; give a size that a model can have")


def check_parameters(count: int) -> None:
    """Raises: ValueError for more parameters than any machine holds."""
    if count > MOST_PARAMETERS:
        raise ValueError(
            f"the model has about {count:.1e} parameters, more than {MOST_PARAMETERS:.0e}; lower model.vocab, "
            "model.layers or its widths"
        )


def _short(value: int) -> str:
    return str(value) if abs(value) < 10**20 else "a number of more than 20 digits"


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """What the transformers of the house have in common."""

    vocab: int
    """Rows of the token table."""
    length: int
    """Rows of the position table: the longest line."""
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    ffn: int = 3072
    """Inner width of the feed-forward."""
    dropout: float = 0.1
    """On the embeddings and on what each sublayer adds."""
    attention_dropout: float = 0.1
    """On the attention weights."""
    head_dropout: float = 0.1
    """On what a task's head reads."""
    eps: float
    """Of every layer norm."""
    init_std: float = 0.02
    """Of kernels and tables."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What is computed in; parameters, norms, softmaxes and losses stay in float32."""
    unroll: int = 0
    """Layers per turn of the layer loop; 0: no loop (faster on a CPU), 1: smallest program."""
    remat: Literal["none", "dots", "full"] = "none"
    """What the backward pass computes again: nothing, all but the matrix products, or everything. Needs a loop."""

    def __post_init__(self) -> None:
        check_sizes(self, "vocab", "length", "layers", "hidden", "heads", "ffn")
        rows = self.vocab + self.length + self.layers * (4 * self.hidden + 2 * self.ffn)
        check_parameters(rows * self.hidden)
        if self.hidden % self.heads:
            raise ValueError(
                f"model.hidden={self.hidden} is not a multiple of model.heads={self.heads}; change one of them"
            )
        for name in ("dropout", "attention_dropout", "head_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"model.{name.replace('_', '-')}={getattr(self, name)} is not in [0, 1)")
        for name in ("eps", "init_std"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"model.{name.replace('_', '-')}={getattr(self, name)} is not above 0 and below 1")
        if self.unroll < 0 or (self.unroll and self.layers % self.unroll):
            raise ValueError(
                f"model.unroll={self.unroll} does not divide model.layers={self.layers}; 0 unrolls all, 1 none"
            )
        if self.remat != "none" and self.unroll in (0, self.layers):
            raise ValueError(
                f"model.remat={self.remat} needs the layer loop that model.unroll={self.unroll} takes away; "
                "give --model.unroll 1"
            )


@dataclass(frozen=True, kw_only=True)
class BertConfig(Transformer):
    """BERT (Devlin et al. 2018). The defaults are bert-base-uncased. Kernels and tables are drawn normal, cut at two
    deviations."""

    vocab: int = 30522
    length: int = 512
    segments: int = 2
    """Token types; those beyond the last are read as the last, so that with 1 a pair's halves are not told apart."""
    gelu: Literal["erf", "tanh", "relu"] = "erf"
    """Which gelu. erf: the first checkpoints and most ports. tanh: the original's code since February 2019. relu:
    none, ERNIE 1.0's choice."""
    eps: float = 1e-12
    tied: bool = True
    """Whether the softmax over masked tokens is over the token table; else it has a table of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "segments")
        check_parameters(self.segments * self.hidden)


@dataclass(frozen=True, kw_only=True)
class GptConfig(Transformer):
    """GPT (Radford et al. 2018, 2019; Brown et al. 2020). The defaults are GPT-2 124M."""

    vocab: int = 50257
    length: int = 1024
    eps: float = 1e-5
    norm: Literal["pre", "post"] = "pre"
    """pre: before each sublayer, and once more at the end (GPT-2, GPT-3). post: after each sublayer's sum (GPT-1)."""
    init: Literal["paper", "released"] = "paper"
    """paper: the kernels that write into the residual stream are drawn smaller, by 1/sqrt(2·layers). released: all
    alike, as the published code has it."""
    position_std: float = 0.01
    """Of the position table (GPT-1: 0.02)."""
    gelu: Literal["tanh", "erf", "relu"] = "tanh"
    """Which gelu; the originals have the tanh form. relu: none."""
    tied: bool = True
    """Whether the softmax is over the token table; else it has a table of its own."""
    biases: bool = True
    """Whether linear maps and norms have them."""
    local_window: int = 0
    """Keys that a position of every second layer sees, itself counted (GPT-3's banded layers); 0: all before it."""
    one_table: bool = False
    """GPT-1's fine-tuning code: tokens and positions are one table. Dropout falls on that table, once a step, wherever
    it is used, and the softmax runs over the positions too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.position_std < 1.0:
            raise ValueError(f"model.position-std={self.position_std} is not above 0 and below 1")
        if self.local_window < 0:
            raise ValueError(f"model.local-window={self.local_window} is not a number of keys (0: all)")
        if self.one_table and not self.tied:
            raise ValueError("model.one-table is the table of the softmax too; leave --model.no-tied out")


@dataclass(frozen=True, kw_only=True)
class ElmoConfig:
    """ELMo's biLM (Peters et al. 2018). The defaults are the published model."""

    vocab: int = 793471
    """Words of the softmax in training; any word can be read."""
    char_width: int = 16
    filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    """Character filters: their width and how many there are of it."""
    activation: Literal["relu", "tanh"] = "relu"
    """Of the filters."""
    highway: int = 2
    """Highway layers over the filters."""
    layers: int = 2
    cells: int = 4096
    """Of an LSTM layer, in each direction."""
    projection: int = 512
    """What an LSTM layer's output is projected to, and the width of a word."""
    cell_clip: float = 3.0
    """Most that a cell may hold, either way; 0: any."""
    projection_clip: float = 3.0
    """Most that the projected output may hold, either way; 0: any."""
    skip: bool = True
    """Each layer but the first adds its input to its output."""
    dropout: float = 0.1
    """On the input of each LSTM layer, and on what the softmax reads."""
    head_dropout: float = 0.5
    """On what a task's head reads."""
    stateful: bool = False
    """Sentences go on from the states that the batch before left, line by line, as in the original's inference."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What is computed in; parameters, cells, softmaxes and losses stay in float32."""

    def __post_init__(self) -> None:
        check_sizes(self, "vocab", "char_width", "layers", "cells", "projection")
        if self.highway > 0:
            check_sizes(self, "highway")
        if not self.filters or any(not 1 <= width <= WORD_CHARS or count < 1 for width, count in self.filters):
            raise ValueError(
                f"model.filters={self.filters} are not pairs of a width from 1 to {WORD_CHARS} and how many there are"
            )
        for name in ("highway", "cell_clip", "projection_clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"model.{name.replace('_', '-')}={getattr(self, name)} is not at least 0")
        filters = sum(count for _, count in self.filters)
        characters = sum(width * count for width, count in self.filters) * self.char_width
        highways = filters * (2 * self.highway * filters + self.projection)
        lstms = 2 * self.layers * self.cells * (9 * self.projection)
        check_parameters(characters + highways + lstms + self.vocab * self.projection)
        for name in ("dropout", "head_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"model.{name.replace('_', '-')}={getattr(self, name)} is not in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """What a task's head reads of the backbone (Peters et al. 2018, section 3.3)."""

    mix: Literal["off", "all", "top", "words"] = "off"
    """Of each word: the last layer, without more (off); a learned mix of all layers; of the top one or of the words'
    own, their weight learned."""
    mix_norm: bool = False
    """Each layer is normed before it is mixed, over all words of a batch together, as the original has it: what is
    answered depends a little on the batch then, and a step on optim.accumulate."""
    mix_l2: float = 0.0
    """What the sum of the squared mixing weights counts in the loss."""
    place: Literal["input", "output", "both"] = "input"
    """Where the mix goes: into the task's biLSTM; beside its output (it reads the words' own layer then); or both."""
    cells: int = 0
    """Of the task's biLSTM in each direction; 0: none."""
    crf: bool = False
    """Tags are scored as a chain."""
    pair: bool = False
    """An example is a pair of texts that are matched. Known from the examples; not to be given."""

    def __post_init__(self) -> None:
        if self.cells < 0:
            raise ValueError(f"head.cells={self.cells} is not a number of cells (0: no biLSTM)")
        if not 0.0 <= self.mix_l2 < math.inf:
            raise ValueError(f"head.mix-l2={self.mix_l2} is not a number from 0 on")
        if self.mix == "off":
            for name, usual in (("mix_norm", False), ("mix_l2", 0.0), ("place", "input"), ("cells", 0), ("crf", False)):
                if getattr(self, name) != usual:
                    raise ValueError(
                        f"head.{name.replace('_', '-')}={getattr(self, name)} has no meaning for head.mix=off; "
                        "give --head.mix all, top or words"
                    )
        elif self.mix != "all" and self.mix_l2:
            raise ValueError(f"head.mix-l2={self.mix_l2} has no meaning for head.mix={self.mix}, which mixes nothing")
        elif self.place != "input" and not self.cells:
            raise ValueError(f"head.place={self.place} wants a biLSTM of the task's own; give --head.cells")


WORD_CHARS = 50
"""Character ids of a word that an ELMo reads: its first 48 bytes, begin and end."""
ModelConfig = BertConfig | GptConfig | ElmoConfig


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. temperature 0: the likeliest; 1: as the model has it. top_k: among the k likeliest
    (0: all; those that tie with the last stay). top_p: of these, among the likeliest that together have the share p
    (1: all). exclusive: the token with which they reach it stays out, as in the original's code; else it stays in."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    exclusive: bool = False

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise ValueError(
                f"temperature={self.temperature} is not at least 0, which takes always the likeliest token"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top-p={self.top_p} is not above 0 and at most 1")
        if self.top_k < 0:
            raise ValueError(f"top-k={self.top_k} is not at least 0")
