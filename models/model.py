"""Model = backbone + heads. Parameters are always {"backbone": …, "heads_<name>": …}."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from contexture.models import bert, elmo, gpt
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, HeadConfig, ModelConfig
from contexture.models.encoding import Encoding
from contexture.models.heads import language_model as lm_heads
from contexture.models.heads import layer_mix as features
from contexture.models.heads import tasks as task_heads
from contexture.models.heads.sampled_softmax import BiLmHead
from contexture.models.layers.blocks import Init, activation_floats
from contexture.models.layers.dropout import DropoutKey, repeat_for_choices
from contexture.models.shapes import by_path


@flax.struct.dataclass
class Outputs:
    """What a model answers: the encoding and what each head says by name (logits; of `lm`, TokenLosses)."""

    encoding: Encoding
    heads: dict[str, Any]
    mix_squares: jax.Array | None = None
    """The sum of the squared mixing weights of the heads that have such."""


class Model(nn.Module):
    """A backbone with its heads: batch of fields by name → Outputs.

    dropout_key makes dropout's masks (None: evaluation). states asks for every layer's output. Fields BAL (the
    alternatives of each line) are folded to (BA)L; the Encoding says so, and heads that answer for a line unfold.
    """

    backbone: nn.Module
    heads: dict[str, nn.Module]

    def __call__(
        self, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None, *, states: bool = False
    ) -> Outputs:
        folded = {name: _folded(x) for name, x in batch.items()}
        lines = batch["tokens" if "tokens" in batch else "index"]
        choices = lines.shape[1] if lines.ndim == 3 else 1
        states = states or any(getattr(head, "reads_states", False) for head in self.heads.values())
        encoding = self.backbone(folded, repeat_for_choices(dropout_key, choices), states=states).replace(
            choices=choices
        )
        answers = {name: head(encoding, folded, dropout_key) for name, head in self.heads.items()}
        weights = [x for head in self.heads.values() for path, x in by_path(head.variables.get("params", {})).items()
                   if path.endswith("mix/weights")]  # fmt: skip
        return Outputs(encoding, answers, jnp.square(jnp.concatenate(weights)).sum() if weights else None)


def _folded(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1]) if x.ndim == 3 else x


@dataclass(frozen=True)
class Family:
    """What the rest of the house needs to know of a family."""

    backbone: Callable[[Any], nn.Module]
    fields: dict[str, str]
    """What the backbone reads of a batch."""
    training_flops: Callable[[Any, dict[str, int]], float]
    """(config, sizes by letter) → FLOPs of one step."""
    sizes: Callable[[Any, int], dict[str, int]]
    """(config, classes) → sizes by letter."""
    kernel_init: Callable[[Any], Init]
    activation_floats: Callable[[Any, dict[str, int]], float]
    """(config, sizes by letter) → about how many numbers a training step works on at once beside its parameters."""


FAMILIES: dict[type, Family] = {
    BertConfig: Family(bert.Bert, bert.FIELDS, bert.training_flops, bert.sizes, bert.kernel_init, activation_floats),
    GptConfig: Family(gpt.Gpt, gpt.FIELDS, gpt.training_flops, gpt.sizes, gpt.kernel_init, activation_floats),
    ElmoConfig: Family(
        elmo.Elmo, elmo.FIELDS, elmo.training_flops, elmo.sizes, elmo.kernel_init, elmo.activation_floats
    ),
}


def _mlm(config: BertConfig, classes: int) -> nn.Module:
    return lm_heads.MaskedLM(
        bert.sizes(config), config.gelu, config.eps, bert.kernel_init(config), jnp.dtype(config.dtype), config.tied
    )


def _nsp(config: BertConfig, classes: int) -> nn.Module:
    return lm_heads.NextSentence(bert.sizes(config), bert.kernel_init(config), jnp.dtype(config.dtype))


def _lm(config: GptConfig, classes: int) -> nn.Module:
    return lm_heads.NextTokenHead(gpt.sizes(config), gpt.kernel_init(config), jnp.dtype(config.dtype), config.tied)


def _span(config: BertConfig, classes: int) -> nn.Module:
    return task_heads.SpanHead({**bert.sizes(config), "C": 2}, bert.kernel_init(config), jnp.dtype(config.dtype))


def _bilm(config: ElmoConfig, classes: int) -> nn.Module:
    return BiLmHead(elmo.sizes(config), config.dropout, jnp.dtype(config.dtype))


def _task(head: type[nn.Module]) -> Callable[[Any, int], nn.Module]:
    def make(config: ModelConfig, classes: int) -> nn.Module:
        family = FAMILIES[type(config)]
        dtype = jnp.dtype(config.dtype)
        return head(family.sizes(config, classes), config.head_dropout, family.kernel_init(config), dtype)  # pyright: ignore[reportCallIssue]

    return make


def _features(head: type[nn.Module], settings: HeadConfig, config: ModelConfig, classes: int) -> nn.Module:
    family = FAMILIES[type(config)]
    dtype = jnp.dtype(config.dtype)
    return head(family.sizes(config, classes), config.head_dropout, family.kernel_init(config), dtype, settings)  # pyright: ignore[reportCallIssue]


FEATURES: dict[str, type[nn.Module]] = {
    "classify": features.PooledFeatures,
    "regress": features.PooledFeatures,
    "tag": features.TagFeatures,
}
"""The heads of tasks that read a mix of the layers."""
HEADS: dict[str, Callable[[Any, int], nn.Module]] = {
    "mlm": _mlm,
    "nsp": _nsp,
    "lm": _lm,
    "bilm": _bilm,
    "classify": _task(task_heads.Pooled),
    "regress": _task(task_heads.Pooled),
    "tag": _task(task_heads.PerToken),
    "choice": _task(task_heads.ChoiceHead),
    "span": _span,
}
"""(config, classes) → head. classes is the number of labels of a task."""


_PLAIN = HeadConfig()


def build(config: ModelConfig, heads: tuple[str, ...] = (), classes: int = 1, head: HeadConfig = _PLAIN) -> Model:
    """The model of a configuration with the heads named: `build(BertConfig(), ("mlm", "nsp"))`. head: what those of a
    task read."""

    def made(name: str) -> nn.Module:
        if head.mix != "off" and name in FEATURES:
            return _features(FEATURES[name], head, config, classes)
        return HEADS[name](config, classes)

    return Model(FAMILIES[type(config)].backbone(config), {name: made(name) for name in heads})


def example(fields: dict[str, str], sizes: dict[str, int]) -> dict[str, jax.Array]:
    """A batch of ones by its spec, for shapes: `example({"tokens": "i32 BL"}, {"B": 1, "L": 8})`."""
    kinds = {"i32": jnp.int32, "f32": jnp.float32}
    batch = {}
    for name, spec in fields.items():
        kind, _, dims = spec.partition(" ")
        batch[name] = jnp.ones(tuple(sizes[letter] for letter in dims), kinds[kind])
    return batch
