"""What a run optimises: pairs the fields of a batch with what a model's heads answer.

The loss is Σ coefficient · total / weight over the terms, each term's weight taken over the whole batch before it is
cut into microbatches; so parts add up exactly, over microbatches, devices and processes.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from models.model import FAMILIES, Outputs
from train.config import Run
from train.losses import Sum, cross_entropy

Batch = dict[str, Any]


class Objective(Protocol):
    """The contract. `fields` is what is read of a batch beyond what the backbone reads."""

    @property
    def heads(self) -> tuple[str, ...]: ...
    @property
    def fields(self) -> dict[str, str]: ...
    @property
    def terms(self) -> dict[str, float]: ...

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Each term's weight over the whole batch; reads the batch's fields only."""
        ...

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        """Each term, and what else is measured, over a part of the batch."""
        ...


@dataclass(frozen=True)
class MlmNsp:
    """Masked tokens and next sentence (BERT, section 3.1): the mean over predicted slots plus the mean over lines."""

    heads: tuple[str, ...] = ("mlm", "nsp")
    fields: dict[str, str] = field(
        default_factory=lambda: {
            "slots": "i32 BP",
            "labels": "i32 BP",
            "slot_weights": "f32 BP",
            "is_random": "i32 B",
            "valid": "f32 B",
        }
    )
    terms: dict[str, float] = field(default_factory=lambda: {"mlm_loss": 1.0, "nsp_loss": 1.0})

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """The original divides by Σ w + 1e-5."""
        return {"mlm_loss": batch["slot_weights"].sum() + 1e-5, "nsp_loss": jnp.maximum(batch["valid"].sum(), 1.0)}

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        slots_BP, lines_B = batch["slot_weights"], batch["valid"]
        mlm_BP, mlm_hit_BP = cross_entropy(outputs.heads["mlm"], batch["labels"])
        nsp_B, nsp_hit_B = cross_entropy(outputs.heads["nsp"], batch["is_random"])
        return {
            "mlm_loss": Sum((mlm_BP * slots_BP).sum(), slots_BP.sum()),
            "nsp_loss": Sum((nsp_B * lines_B).sum(), lines_B.sum()),
            "mlm_accuracy": Sum((mlm_hit_BP * slots_BP).sum(), slots_BP.sum()),
            "nsp_accuracy": Sum((nsp_hit_B * lines_B).sum(), lines_B.sum()),
        }


OBJECTIVES: dict[str, Objective] = {"mlm_nsp": MlmNsp()}


def batch_fields(run: Run) -> dict[str, str]:
    """All that a run's batches must hold: what its backbone reads and what its objective reads beyond it."""
    return {**FAMILIES[type(run.model)].fields, **OBJECTIVES[run.objective].fields}


def batch_sizes(run: Run, lines: int) -> dict[str, int]:
    """The letters of a batch of so many lines: {"B": 32, "L": 128, "P": 20}."""
    return {"B": lines, "L": run.data.length, "P": run.data.predictions}


def loss(objective: Objective, sums: dict[str, Sum], weights: dict[str, jax.Array]) -> jax.Array:
    """Σ coefficient · total / weight over the terms."""
    return jnp.stack([c * sums[name].total / weights[name] for name, c in objective.terms.items()]).sum()


def means(sums: dict[str, Sum]) -> dict[str, jax.Array]:
    """What was measured: total / weight of each."""
    return {name: s.total / jnp.maximum(s.weight, 1e-9) for name, s in sums.items()}
