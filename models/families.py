"""The model families: the backbone and heads that a configuration builds, and their FLOPs and activations."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from contexture.models import bert, elmo, gpt, vectors
from contexture.models.bert import MaskedLmHead, NextSentenceHead, SpanBoundaryHead
from contexture.models.config import (
    BertConfig,
    ElmoConfig,
    GptConfig,
    HeadConfig,
    ModelConfig,
    VectorsConfig,
)
from contexture.models.heads.chunked_softmax import NextTokenHead
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
    """Its pretraining heads by name, and the task heads that it has in place of the common ones (HEADS)."""
    block: Callable[[Any], nn.Module] | None = None
    """(config) → a layer with attention, whose `maps` gives its weights; None: it has no attention."""


# Each pretraining head takes its sizes, initialiser and dtype from the backbone's own configuration.
def _masked_lm(config: BertConfig, sizes: dict[str, int]) -> nn.Module:
    return MaskedLmHead(sizes, config.gelu, config.eps, bert.kernel_init(config), jnp.dtype(config.dtype), config.tied)


def _span_boundary(config: BertConfig, sizes: dict[str, int]) -> nn.Module:
    init = bert.kernel_init(config)
    return SpanBoundaryHead(sizes, config.gelu, config.eps, init, jnp.dtype(config.dtype), config.tied)


def _next_sentence(config: BertConfig, sizes: dict[str, int]) -> nn.Module:
    # Two classes, is next and random, however many labels a task of the same model has.
    return NextSentenceHead({**sizes, "C": 2}, bert.kernel_init(config), jnp.dtype(config.dtype))


def _next_token(config: ModelConfig, sizes: dict[str, int]) -> nn.Module:
    # For any causal family: the initialiser is the family's own.
    return NextTokenHead(sizes, family_of(config).kernel_init(config), jnp.dtype(config.dtype), config.tied)


def _pointers(config: GptConfig, sizes: dict[str, int]) -> nn.Module:
    # Two outputs, the answer's start and end.
    return SpanPointerHead({**sizes, "C": 2}, gpt.kernel_init(config), jnp.dtype(config.dtype))


def _bilm(config: ElmoConfig, sizes: dict[str, int]) -> nn.Module:
    return BiLmHead(sizes, config.dropout, jnp.dtype(config.dtype))


MODEL_FAMILIES: dict[type, ModelFamily] = {
    # By class and not by name: a configuration carries no code, and code that has one needs no name to find its family.
    BertConfig: ModelFamily(
        bert.Bert,
        bert.sizes,
        bert.kernel_init,
        bert.training_flops,
        activation_floats,
        {"mlm": _masked_lm, "nsp": _next_sentence, "boundary": _span_boundary},
        bert.Block,
    ),
    GptConfig: ModelFamily(
        gpt.Gpt,
        gpt.sizes,
        gpt.kernel_init,
        gpt.training_flops,
        activation_floats,
        # `span` replaces HEADS' own: left of the question a causal model does not know it (SpanPointerHead).
        {"lm": _next_token, "span": _pointers},
        gpt.Block,
    ),
    # Recurrent: no layer with attention, and an estimate of activations of its own.
    ElmoConfig: ModelFamily(
        elmo.Elmo, elmo.sizes, elmo.kernel_init, elmo.training_flops, elmo.activation_floats, {"bilm": _bilm}
    ),
    # No pretraining head: tables are imported.
    VectorsConfig: ModelFamily(
        vectors.Vectors, vectors.sizes, vectors.kernel_init, vectors.training_flops, vectors.activation_floats
    ),
}
"""The families, by the class of their configurations."""


def family_of(config: ModelConfig) -> ModelFamily:
    """Returns the family of a configuration."""
    return MODEL_FAMILIES[type(config)]


def _task_head(head: type[LinearHead]) -> HeadFactory:
    # The family is looked up when the head is built, so one factory serves all of them.
    def factory(config: ModelConfig, sizes: dict[str, int]) -> nn.Module:
        kernel_init = family_of(config).kernel_init(config)
        return head(sizes, kernel_init, jnp.dtype(config.dtype), config.head_dropout)

    return factory


def _span(config: ModelConfig, sizes: dict[str, int]) -> nn.Module:
    # Without dropout, as in the original (run_squad.py).
    return SpanHead({**sizes, "C": 2}, family_of(config).kernel_init(config), jnp.dtype(config.dtype))


@dataclass(frozen=True)
class TaskHead:
    """The head of a kind of task.

    Args:
        head: builds the usual one, on the last layer.
        mix: the one in its place where the task reads a mix of the layers.
        outputs: how many numbers the mixed one gives for a token or a sequence; None: one for each label.
    """

    head: HeadFactory
    mix: type[MixHead]
    outputs: int | None = None


HEADS = {
    "classify": TaskHead(_task_head(PooledHead), MixPooledHead),
    "regress": TaskHead(_task_head(PooledHead), MixPooledHead),
    "tag": TaskHead(_task_head(TokenHead), MixTagHead),
    # An alternative has one score.
    "choice": TaskHead(_task_head(ChoiceHead), MixChoiceHead, outputs=1),
    # A token has two: that the answer begins there, and that it ends there.
    "span": TaskHead(_span, MixSpanHead, outputs=2),
}
"""By the kind of task. A family's own head of that name (`ModelFamily.heads`) comes first."""

_NO_MIX = HeadConfig()


def build(config: ModelConfig, heads: tuple[str, ...] = (), classes: int = 1, head: HeadConfig = _NO_MIX) -> Model:
    """Returns the model of a configuration with the named heads: `build(BertConfig(), ("mlm", "nsp"))`.

    Args:
        config: the backbone's configuration.
        heads: names of pretraining heads or of kinds of tasks.
        classes: a task's number of labels.
        head: what the heads of tasks read.
    """
    family = family_of(config)
    sizes = family.sizes(config, classes)

    def build_head(name: str) -> nn.Module:
        # A mix replaces the task's usual head. Pretraining heads are not in HEADS: they read the last layer.
        if head.mix != "off" and (row := HEADS.get(name)):
            own = sizes if row.outputs is None else {**sizes, "C": row.outputs}
            return row.mix(own, family.kernel_init(config), jnp.dtype(config.dtype), config.head_dropout, head)
        factory = family.heads.get(name) or HEADS[name].head
        return factory(config, sizes)

    return Model(family.backbone(config), {name: build_head(name) for name in heads})


def example(fields: dict[str, str], sizes: dict[str, int]) -> dict[str, jax.Array]:
    """Returns a batch of ones by its spec, for its shapes: `example({"tokens": "i32 BL"}, {"B": 1, "L": 8})`."""
    dtypes = {"i32": np.int32, "f32": np.float32}
    batch = {}
    for name, spec in fields.items():
        # A field is its dtype and its letters: "i32 BL".
        dtype, _, dims = spec.partition(" ")
        # NumPy's ones: JAX's would be a program that is compiled for each shape.
        batch[name] = jnp.asarray(np.ones(tuple(sizes[letter] for letter in dims), dtypes[dtype]))
    return batch
