"""Model = backbone + heads. Parameters are always {"backbone": …, "heads_<name>": …}."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from models import bert, lm_heads, task_heads
from models.config import BertConfig, ModelConfig
from models.dropout import Noise
from models.shapes import Encoding


@flax.struct.dataclass
class Outputs:
    """What a model answers: the encoding and each head's logits by name."""

    encoding: Encoding
    heads: dict[str, jax.Array]


class Model(nn.Module):
    """A backbone with its heads: batch of fields by name → Outputs.

    noise makes dropout's masks (None: evaluation). states asks for every layer's output.
    """

    backbone: nn.Module
    heads: dict[str, nn.Module]

    def __call__(self, batch: dict[str, jax.Array], noise: Noise | None = None, *, states: bool = False) -> Outputs:
        encoding = self.backbone(batch, noise, states=states)
        return Outputs(encoding, {name: head(encoding, batch, noise) for name, head in self.heads.items()})


def _mlm(config: BertConfig, classes: int) -> nn.Module:
    return lm_heads.MaskedLM(
        bert.sizes(config), config.gelu, config.eps, bert.kernel_init(config), jnp.dtype(config.dtype)
    )


def _nsp(config: BertConfig, classes: int) -> nn.Module:
    return lm_heads.NextSentence(bert.sizes(config), bert.kernel_init(config), jnp.dtype(config.dtype))


def _task(head: type[nn.Module]) -> Callable[[Any, int], nn.Module]:
    return lambda c, classes: head(bert.sizes(c, classes), c.head_dropout, bert.kernel_init(c), jnp.dtype(c.dtype))  # pyright: ignore[reportCallIssue]


@dataclass(frozen=True)
class Family:
    """What the rest of the house needs to know of a family."""

    backbone: Callable[[Any], nn.Module]
    fields: dict[str, str]
    """What the backbone reads of a batch."""
    training_flops: Callable[[Any, dict[str, int]], float]
    """(config, sizes by letter) → FLOPs of one step."""


FAMILIES: dict[type, Family] = {BertConfig: Family(bert.Bert, bert.FIELDS, bert.training_flops)}
HEADS: dict[str, Callable[[Any, int], nn.Module]] = {
    "mlm": _mlm,
    "nsp": _nsp,
    "classify": _task(task_heads.Pooled),
    "regress": _task(task_heads.Pooled),
    "tag": _task(task_heads.PerToken),
}
"""(config, classes) → head. classes is the number of labels of a task."""


def build(config: ModelConfig, heads: tuple[str, ...] = (), classes: int = 1) -> Model:
    """The model of a configuration with the heads named: `build(BertConfig(), ("mlm", "nsp"))`."""
    return Model(FAMILIES[type(config)].backbone(config), {name: HEADS[name](config, classes) for name in heads})


def example(fields: dict[str, str], sizes: dict[str, int]) -> dict[str, jax.Array]:
    """A batch of ones by its spec, for shapes: `example({"tokens": "i32 BL"}, {"B": 1, "L": 8})`."""
    kinds = {"i32": jnp.int32, "f32": jnp.float32}
    batch = {}
    for name, spec in fields.items():
        kind, _, dims = spec.partition(" ")
        batch[name] = jnp.ones(tuple(sizes[letter] for letter in dims), kinds[kind])
    return batch
