"""Model = backbone + heads. Parameters are always {"backbone": …, "heads_<name>": …}."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from contexture.models import bert, elmo, gpt, vectors
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, HeadConfig, ModelConfig, VectorsConfig
from contexture.models.encoding import Encoding
from contexture.models.heads.language_model import MaskedLmHead, NextSentenceHead, NextTokenHead
from contexture.models.heads.layer_mix import MixChoiceHead, MixHead, MixPooledHead, MixSpanHead, MixTagHead
from contexture.models.heads.linear_head import LinearHead
from contexture.models.heads.sampled_softmax import BiLmHead
from contexture.models.heads.tasks import ChoiceHead, PooledHead, SpanHead, SpanPointerHead, TokenHead
from contexture.models.layers.blocks import Init, activation_floats
from contexture.models.layers.dropout import DropoutKey, repeat_for_choices
from contexture.models.layers.stacked import stack_layers
from contexture.models.shapes import by_path

HeadOutput: TypeAlias = Any
"""Logits (jax.Array), TokenLosses of `lm`, {direction: TokenLosses} of `bilm`, or CrfOutput of `tag` with a CRF.

Which one, the head's name and config decide, and who reads the output knows them; a union would have to be narrowed at
each use.
"""


@flax.struct.dataclass
class Outputs:
    """The outputs of a model.

    encoding     what the backbone returns
    heads        what each head returns, by its name
    mix_squares  Σ weights² of the heads' layer mixes, for their L2 penalty; None without such heads
    """

    encoding: Encoding
    heads: dict[str, HeadOutput]
    mix_squares: jax.Array | None = None


class Model(nn.Module):
    """A backbone with its heads: batch of arrays by field name → Outputs.

    dropout_key draws dropout's masks (None: evaluation). states asks for every layer's output. only: the heads to
    run; None: all. A head reads fields of its own: with only=() the backbone's alone are enough. frozen: the backbone
    is not trained and draws no dropout, so that its outputs are those of evaluation.

    A batch that holds what its frozen backbone computes does not run it: states BNLD, of the layers that the heads read
    (`layers_read`), and pooled BD where they read it. The other states are NaN.

    Fields of dims BAL hold A alternatives of each example. The backbone reads them as B·A sequences; the Encoding's
    `choices` is A, and heads that classify an example join its rows again.
    """

    backbone: nn.Module
    heads: dict[str, nn.Module]

    @property
    def config(self) -> ModelConfig:
        """The backbone's configuration, whose class tells the family."""
        return self.backbone.config  # pyright: ignore[reportAttributeAccessIssue]

    def __call__(
        self,
        batch: dict[str, jax.Array],
        dropout_key: DropoutKey | None = None,
        *,
        states: bool = False,
        only: tuple[str, ...] | None = None,
        frozen: bool = False,
    ) -> Outputs:
        run = self.heads if only is None else {name: self.heads[name] for name in only}
        folded = {name: _fold_choices(x) for name, x in batch.items()}
        tokens = batch["tokens" if "tokens" in batch else "index"]
        choices = tokens.shape[1] if tokens.ndim == 3 else 1
        # Heads on a mix of layers need every layer, whether or not the caller asks for them.
        states = states or any(getattr(head, "reads_states", False) for head in run.values())
        # The backbone draws dropout for each of the B·A rows; heads get the key of the B examples.
        key = None if frozen else repeat_for_choices(dropout_key, choices)
        stored = "states" in folded or "pooled" in folded
        encoding = self._stored_encoding(folded) if stored else self.backbone(folded, key, states=states)
        encoding = dataclasses.replace(encoding, choices=choices)
        outputs = {name: head(encoding, folded, dropout_key) for name, head in run.items()}
        # The raw weights before their softmax, as in the original's l2_coef.
        weights = [x for head in run.values() for path, x in by_path(head.variables.get("params", {})).items()
                   if path.endswith("mix/weights")]  # fmt: skip
        return Outputs(encoding, outputs, jnp.square(jnp.concatenate(weights)).sum() if weights else None)

    @nn.nowrap
    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the outputs, as any Flax module's `apply`; it takes the parameters of `unstack_layers` too."""
        if "params" in variables:
            variables = {**variables, "params": stack_layers(variables["params"])}
        return super().apply(variables, *args, **kwargs)

    def layers_read(self) -> tuple[int, ...]:
        """Returns which of the backbone's states the heads of a task read (0: the embeddings), ascending."""
        heads = [head for head in self.heads.values() if isinstance(head, LinearHead)]
        return tuple(sorted({n for head in heads for n in head.layers_read(self.config.layers)}))

    def reads_pooled(self) -> bool:
        """Returns whether a head of a task reads the pooled vector."""
        return any(getattr(head, "reads_pooled", False) for head in self.heads.values())

    def _stored_encoding(self, batch: dict[str, jax.Array]) -> Encoding:
        mask_BL, read = batch["mask"], self.layers_read()
        width = FAMILIES[type(self.config)].sizes(self.config)["D"]
        nothing_BLD = jnp.full((*mask_BL.shape, width), jnp.nan, jnp.dtype(self.config.dtype))
        states = [nothing_BLD] * (self.config.layers + 1)
        for place, layer in enumerate(read):
            states[layer] = batch["states"][:, place]
        return Encoding(states[-1], mask_BL, batch.get("pooled"), tuple(states))


def _fold_choices(x: jax.Array) -> jax.Array:
    """BAL → (B·A)L, BANLD → (B·A)NLD; other arrays as they are."""
    return x.reshape(-1, *x.shape[2:]) if x.ndim in (3, 5) else x


@dataclass(frozen=True)
class Family:
    """What code outside models/ needs to know about a model family. Its functions take the family's own config."""

    backbone: Callable[..., nn.Module]
    """(config) → the backbone."""
    fields: dict[str, str]
    """The batch fields that the backbone reads: {"tokens": "i32 BL", …}."""
    training_flops: Callable[..., float]
    """(config, sizes by letter) → FLOPs of one step."""
    sizes: Callable[..., dict[str, int]]
    """(config, classes) → sizes by letter."""
    kernel_init: Callable[..., Init]
    """(config) → the initialiser of kernels."""
    activation_floats: Callable[..., float]
    """(config, sizes by letter) → about how many activations a training step holds at once."""


FAMILIES: dict[type[ModelConfig], Family] = {
    BertConfig: Family(bert.Bert, bert.FIELDS, bert.training_flops, bert.sizes, bert.kernel_init, activation_floats),
    GptConfig: Family(gpt.Gpt, gpt.FIELDS, gpt.training_flops, gpt.sizes, gpt.kernel_init, activation_floats),
    ElmoConfig: Family(
        elmo.Elmo, elmo.FIELDS, elmo.training_flops, elmo.sizes, elmo.kernel_init, elmo.activation_floats
    ),
    VectorsConfig: Family(
        vectors.Vectors,
        vectors.FIELDS,
        vectors.training_flops,
        vectors.sizes,
        vectors.kernel_init,
        vectors.activation_floats,
    ),  # fmt: skip
}

# The factories of heads: (config, sizes by letter) → head. sizes["C"] is the number of a task's classes; BERT's
# next-sentence and span heads have always two.
HeadFactory: TypeAlias = Callable[..., nn.Module]


def _masked_lm(config: BertConfig, sizes: dict[str, int]) -> nn.Module:
    return MaskedLmHead(
        sizes, config.gelu, config.eps, bert.kernel_init(config), jnp.dtype(config.dtype), config.tied
    )  # fmt: skip


def _next_sentence(config: BertConfig, sizes: dict[str, int]) -> nn.Module:
    return NextSentenceHead({**sizes, "C": 2}, bert.kernel_init(config), jnp.dtype(config.dtype))


def _next_token(config: GptConfig, sizes: dict[str, int]) -> nn.Module:
    return NextTokenHead(sizes, gpt.kernel_init(config), jnp.dtype(config.dtype), config.tied)


def _span(config: ModelConfig, sizes: dict[str, int]) -> nn.Module:
    head = SpanPointerHead if isinstance(config, GptConfig) else SpanHead
    return head({**sizes, "C": 2}, FAMILIES[type(config)].kernel_init(config), jnp.dtype(config.dtype))


def _bilm(config: ElmoConfig, sizes: dict[str, int]) -> nn.Module:
    return BiLmHead(sizes, config.dropout, jnp.dtype(config.dtype))


def _task_head(head: type[LinearHead]) -> HeadFactory:
    def factory(config: ModelConfig, sizes: dict[str, int]) -> nn.Module:
        kernel_init = FAMILIES[type(config)].kernel_init(config)
        return head(sizes, kernel_init, jnp.dtype(config.dtype), config.head_dropout)

    return factory


HEADS: dict[str, HeadFactory] = {
    "mlm": _masked_lm,
    "nsp": _next_sentence,
    "lm": _next_token,
    "bilm": _bilm,
    "classify": _task_head(PooledHead),
    "regress": _task_head(PooledHead),
    "tag": _task_head(TokenHead),
    "choice": _task_head(ChoiceHead),
    "span": _span,
}
MIX_HEADS: dict[str, type[MixHead]] = {
    "classify": MixPooledHead,
    "regress": MixPooledHead,
    "tag": MixTagHead,
    "choice": MixChoiceHead,
    "span": MixSpanHead,
}
"""The heads that stand in for those of HEADS where a task reads a mix of the layers."""

_NO_MIX = HeadConfig()


def build(config: ModelConfig, heads: tuple[str, ...] = (), classes: int = 1, head: HeadConfig = _NO_MIX) -> Model:
    """Returns the model of a configuration with the named heads: `build(BertConfig(), ("mlm", "nsp"))`.

    classes is a task's number of labels; `head` says what the heads of tasks read.
    """
    family = FAMILIES[type(config)]
    sizes = family.sizes(config, classes)

    def build_head(name: str) -> nn.Module:
        if head.mix != "off" and name in MIX_HEADS:
            dtype, own = jnp.dtype(config.dtype), {**sizes, "C": 2} if name == "span" else sizes
            own = {**own, "C": 1} if name == "choice" else own
            return MIX_HEADS[name](own, family.kernel_init(config), dtype, config.head_dropout, head)
        return HEADS[name](config, sizes)

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
