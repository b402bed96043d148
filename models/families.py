"""The families of models: what a configuration is built into, and how many numbers and FLOPs that has."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from contexture.models import bert, elmo, gpt, vectors
from contexture.models.config import (
    BertConfig,
    ElmoConfig,
    GptConfig,
    HeadConfig,
    ModelConfig,
    VectorsConfig,
)
from contexture.models.heads.language_model import MaskedLmHead, NextSentenceHead, NextTokenHead
from contexture.models.heads.layer_mix import MixChoiceHead, MixHead, MixPooledHead, MixSpanHead, MixTagHead
from contexture.models.heads.linear_head import LinearHead
from contexture.models.heads.sampled_softmax import BiLmHead
from contexture.models.heads.tasks import ChoiceHead, PooledHead, SpanHead, SpanPointerHead, TokenHead
from contexture.models.layers.blocks import Init, activation_floats
from contexture.models.model import Model

HeadFactory: TypeAlias = Callable[..., nn.Module]
"""(config, sizes by letter) → a head. sizes["C"] is the number of a task's classes; BERT's next-sentence head and span
heads have always two."""


@dataclass(frozen=True)
class ModelFamily:
    """What code outside models/ needs to know about a family of models. Its functions take the family's own config."""

    backbone: Callable[..., nn.Module]
    """(config) → the backbone."""
    sizes: Callable[..., dict[str, int]]
    """(config, classes) → sizes by letter."""
    kernel_init: Callable[..., Init]
    """(config) → the initialiser of kernels."""
    training_flops: Callable[..., float]
    """(config, sizes by letter) → FLOPs of one step."""
    activation_floats: Callable[..., float]
    """(config, sizes by letter) → about how many activations a training step holds at once."""
    heads: dict[str, HeadFactory] = field(default_factory=dict)
    """The heads of its pretraining by their names, and those of tasks that it has in place of HEADS'."""
    block: Callable[[Any], nn.Module] | None = None
    """(config) → a layer with attention, whose `maps` gives its weights; None: it has no attention."""


def _masked_lm(config: BertConfig, sizes: dict[str, int]) -> nn.Module:
    return MaskedLmHead(sizes, config.gelu, config.eps, bert.kernel_init(config), jnp.dtype(config.dtype), config.tied)


def _next_sentence(config: BertConfig, sizes: dict[str, int]) -> nn.Module:
    return NextSentenceHead({**sizes, "C": 2}, bert.kernel_init(config), jnp.dtype(config.dtype))


def _next_token(config: GptConfig, sizes: dict[str, int]) -> nn.Module:
    return NextTokenHead(sizes, gpt.kernel_init(config), jnp.dtype(config.dtype), config.tied)


def _pointers(config: GptConfig, sizes: dict[str, int]) -> nn.Module:
    return SpanPointerHead({**sizes, "C": 2}, gpt.kernel_init(config), jnp.dtype(config.dtype))


def _bilm(config: ElmoConfig, sizes: dict[str, int]) -> nn.Module:
    return BiLmHead(sizes, config.dropout, jnp.dtype(config.dtype))


MODEL_FAMILIES: dict[type, ModelFamily] = {
    BertConfig: ModelFamily(
        bert.Bert,
        bert.sizes,
        bert.kernel_init,
        bert.training_flops,
        activation_floats,
        {"mlm": _masked_lm, "nsp": _next_sentence},
        bert.Block,
    ),
    GptConfig: ModelFamily(
        gpt.Gpt,
        gpt.sizes,
        gpt.kernel_init,
        gpt.training_flops,
        activation_floats,
        {"lm": _next_token, "span": _pointers},
        gpt.Block,
    ),
    ElmoConfig: ModelFamily(
        elmo.Elmo, elmo.sizes, elmo.kernel_init, elmo.training_flops, elmo.activation_floats, {"bilm": _bilm}
    ),
    VectorsConfig: ModelFamily(
        vectors.Vectors, vectors.sizes, vectors.kernel_init, vectors.training_flops, vectors.activation_floats
    ),
}
"""The families, by the class of their configurations."""


def family_of(config: ModelConfig) -> ModelFamily:
    """Returns the family of a configuration."""
    return MODEL_FAMILIES[type(config)]


def _task_head(head: type[LinearHead]) -> HeadFactory:
    def factory(config: ModelConfig, sizes: dict[str, int]) -> nn.Module:
        kernel_init = family_of(config).kernel_init(config)
        return head(sizes, kernel_init, jnp.dtype(config.dtype), config.head_dropout)

    return factory


def _span(config: ModelConfig, sizes: dict[str, int]) -> nn.Module:
    return SpanHead({**sizes, "C": 2}, family_of(config).kernel_init(config), jnp.dtype(config.dtype))


HEADS: dict[str, HeadFactory] = {
    "classify": _task_head(PooledHead),
    "regress": _task_head(PooledHead),
    "tag": _task_head(TokenHead),
    "choice": _task_head(ChoiceHead),
    "span": _span,
}
"""The heads of tasks."""
MIX_HEADS: dict[str, type[MixHead]] = {
    "classify": MixPooledHead,
    "regress": MixPooledHead,
    "tag": MixTagHead,
    "choice": MixChoiceHead,
    "span": MixSpanHead,
}
"""The heads in place of HEADS' where a task reads a mix of the layers."""

_NO_MIX = HeadConfig()


def build(config: ModelConfig, heads: tuple[str, ...] = (), classes: int = 1, head: HeadConfig = _NO_MIX) -> Model:
    """Returns the model of a configuration with the named heads: `build(BertConfig(), ("mlm", "nsp"))`.

    classes is a task's number of labels; `head` says what the heads of tasks read.
    """
    family = family_of(config)
    sizes = family.sizes(config, classes)

    def build_head(name: str) -> nn.Module:
        if head.mix != "off" and name in MIX_HEADS:
            dtype, own = jnp.dtype(config.dtype), {**sizes, "C": 2} if name == "span" else sizes
            own = {**own, "C": 1} if name == "choice" else own
            return MIX_HEADS[name](own, family.kernel_init(config), dtype, config.head_dropout, head)
        return (HEADS | family.heads)[name](config, sizes)

    return Model(family.backbone(config), {name: build_head(name) for name in heads})


def example(fields: dict[str, str], sizes: dict[str, int]) -> dict[str, jax.Array]:
    """Returns a batch of ones by its spec, for its shapes: `example({"tokens": "i32 BL"}, {"B": 1, "L": 8})`."""
    dtypes = {"i32": np.int32, "f32": np.float32}
    batch = {}
    for name, spec in fields.items():
        dtype, _, dims = spec.partition(" ")
        # NumPy's ones: JAX's would be a program that is compiled for each shape.
        batch[name] = jnp.asarray(np.ones(tuple(sizes[letter] for letter in dims), dtypes[dtype]))
    return batch
