"""What a model is made of. Plain dataclasses: importing this costs nothing and needs no jax."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """BERT (Devlin et al. 2018). The defaults are bert-base-uncased."""

    vocab: int = 30522
    """Rows of the token table."""
    length: int = 512
    """Rows of the position table: the longest line."""
    segments: int = 2
    """Token types."""
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    ffn: int = 3072
    """Inner width of the feed-forward."""
    gelu: Literal["erf", "tanh"] = "erf"
    """erf: the first checkpoints and most ports. tanh: the original's code since February 2019."""
    dropout: float = 0.1
    """On the embeddings and on what each sublayer adds."""
    attention_dropout: float = 0.1
    """On the attention weights."""
    head_dropout: float = 0.1
    """On what a task's head reads."""
    eps: float = 1e-12
    """Of every layer norm."""
    init_std: float = 0.02
    """Of kernels and tables: normal, cut at two deviations."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What is computed in; parameters, norms, softmaxes and losses stay in float32."""
    unroll: int = 0
    """Layers per turn of the layer loop; 0: no loop (faster on a CPU), 1: smallest program."""
    remat: Literal["none", "dots", "full"] = "none"
    """What the backward pass computes again: nothing, all but the matrix products, or everything. Needs a loop."""

    def __post_init__(self) -> None:
        for name in ("vocab", "length", "segments", "layers", "hidden", "heads", "ffn"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name}={getattr(self, name)} is not a positive number")
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
        if self.segments < 2:
            raise ValueError(f"model.segments={self.segments} does not tell a pair's two halves apart; give at least 2")
        if self.unroll < 0 or (self.unroll and self.layers % self.unroll):
            raise ValueError(
                f"model.unroll={self.unroll} does not divide model.layers={self.layers}; 0 unrolls all, 1 none"
            )
        if self.remat != "none" and self.unroll in (0, self.layers):
            raise ValueError(
                f"model.remat={self.remat} needs the layer loop that model.unroll={self.unroll} takes away; "
                "give --model.unroll 1"
            )


ModelConfig = BertConfig
