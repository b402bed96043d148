"""Model = backbone + heads. Parameters are always {"backbone": …, "heads_<name>": …}."""

import dataclasses
from typing import Any, TypeAlias

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from contexture.models.config import ModelConfig
from contexture.models.encoding import Encoding
from contexture.models.heads.linear_head import LinearHead
from contexture.models.layers.dropout import DropoutKey, repeat_for_choices
from contexture.models.layers.packed_rows import PACKED, apart, encoding_apart, of_rows
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

    Args:
        encoding: what the backbone returns.
        heads: what each head returns, by its name.
        mix_squares: Σ weights² of the heads' layer mixes, for their L2 penalty; None without such heads.
    """

    encoding: Encoding
    heads: dict[str, HeadOutput]
    mix_squares: jax.Array | None = None


class Model(nn.Module):
    """A backbone with its heads: batch of arrays by field name → Outputs.

    A batch may hold the outputs of its frozen backbone, which then does not run: states BNLD, of the layers that the
    heads read (`layers_read`), and pooled BD where they read it. The other states are NaN.

    Fields of dims BAL hold A alternatives of each example. The backbone reads them as B·A sequences; the Encoding's
    `choices` is A, and heads that classify an example join its rows again.

    Sequences may share rows (`layers.packed_rows`): the backbone computes the rows, heads of a task read each sequence
    apart, and heads that predict tokens read the rows: these tokens are their fields, or places that their fields name.
    """

    backbone: nn.Module
    heads: dict[str, nn.Module]

    @property
    def config(self) -> ModelConfig:
        """The backbone's configuration."""
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
        """Computes the outputs of a batch.

        Args:
            batch: arrays by field name.
            dropout_key: draws dropout's masks; None: evaluation.
            states: whether to return every layer's output.
            only: the heads to run; None: all. With () the batch needs the backbone's fields alone.
            frozen: the backbone is not trained and draws no dropout: its outputs are the same as in evaluation.
        """
        # A head that is not run needs none of its fields in the batch.
        run = self.heads if only is None else {name: self.heads[name] for name in only}
        # To the backbone the alternatives of a choice are B·A independent sequences.
        folded = {name: _fold_choices(x) for name, x in batch.items()}
        packed = PACKED in batch
        # Only the lanes of an ELMo's pretraining have no mask.
        mask = batch.get("mask")
        choices = mask.shape[1] if mask is not None and mask.ndim == 3 else 1
        # Heads on a mix of layers need every layer, whether or not the caller asks for them.
        states = states or any(getattr(head, "reads_states", False) for head in run.values())
        # The backbone draws dropout for each of the B·A rows; heads get the key of the B examples.
        key = None if frozen else repeat_for_choices(dropout_key, choices)
        # A frozen run's batches hold the backbone's outputs, which are read instead of computed.
        stored = "states" in folded or "pooled" in folded
        rows = None
        if packed:
            folded["begins"] = folded["begins"].reshape(-1)
            # Drawn by sequence and place: packing changes no mask.
            rows = self.backbone(of_rows(folded), _packed_key(key, batch), states=states)
            encoding = encoding_apart(rows, folded)
        else:
            encoding = self._stored_encoding(folded) if stored else self.backbone(folded, key, states=states)
        encoding = dataclasses.replace(encoding, choices=choices)
        # Heads draw dropout above a frozen backbone too: they are what is trained.
        outputs: dict[str, HeadOutput] = {}
        for name, head in run.items():
            if rows is None or (isinstance(head, LinearHead) and not head.by_token):
                outputs[name] = head(encoding, folded, dropout_key)
            elif isinstance(head, LinearHead):
                # Logits are few numbers a token: they are taken out of the rows, and not the states that they come of.
                outputs[name] = apart(head(rows, folded, _packed_key(dropout_key, batch)), folded)
            else:
                outputs[name] = head(rows, folded, dropout_key)
        # The raw weights before their softmax, as in the original's l2_coef.
        weights = [
            x
            for head in run.values()
            for path, x in by_path(head.variables.get("params", {})).items()
            if path.endswith("mix/weights")
        ]
        return Outputs(encoding, outputs, jnp.square(jnp.concatenate(weights)).sum() if weights else None)

    @nn.nowrap
    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the outputs, as any Flax module's `apply`; it takes the parameters of `unstack_layers` too."""
        # Every module below sees stacked layers, whichever form the caller keeps them in.
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
        # A place for every state, so that heads find theirs by the layer's number.
        mask_BL, read = batch["mask"], self.layers_read()
        # NaN instead of zeros: a head that read a layer that is not stored would show it in its loss.
        nothing_BLD = jnp.full((*mask_BL.shape, self.config.width), jnp.nan, jnp.dtype(self.config.dtype))
        states = [nothing_BLD] * (self.config.layers + 1)
        for place, layer in enumerate(read):
            states[layer] = batch["states"][:, place]
        return Encoding(states[-1], mask_BL, batch.get("pooled"), tuple(states))


def _packed_key(key: DropoutKey | None, batch: dict[str, jax.Array]) -> DropoutKey | None:
    """Returns the key with which sequences that share rows have the masks of a row each."""
    return key and dataclasses.replace(key, packs_XY=batch["packs"], positions_XY=batch["positions"])


def _fold_choices(x: jax.Array) -> jax.Array:
    """BAL → (B·A)L, BANLD → (B·A)NLD; other arrays as they are."""
    return x.reshape(-1, *x.shape[2:]) if x.ndim in (3, 5) else x
