"""Objectives, the losses that runs optimise: each pairs the outputs of a model's heads with the fields of a batch.

    loss = Σ coefficient · total / weight      over the terms

Each term's weight is taken over the whole batch before it is divided into microbatches. So the losses of the parts add
up exactly, over microbatches, devices and processes.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar, cast

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from contexture.data.tasks.batch.batches import task_fields
from contexture.models import elmo
from contexture.models.config import WORD_CHARS
from contexture.models.heads.chunked_softmax import TIE
from contexture.models.heads.crf import CrfOutput
from contexture.models.model import Outputs
from contexture.train.settings.run import Run

Batch: TypeAlias = dict[str, jax.Array]


Array = TypeVar("Array", jax.Array, np.ndarray)


@flax.struct.dataclass
class Sum:
    """A total and its weight; the mean is total / weight."""

    total: jax.Array
    weight: jax.Array

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total, self.weight + other.weight)


@dataclass(frozen=True)
class NoLoss:
    """The objective (`Objective`) of static vectors, which have no pretraining: no heads, no terms."""

    heads: tuple[str, ...] = ()
    terms: dict[str, float] = field(default_factory=dict)

    def weights(self, batch: object) -> dict[str, jax.Array]:
        return {}

    def sums(self, outputs: object, batch: object) -> dict[str, Sum]:
        return {}

    def predictions(self, outputs: object) -> dict[str, jax.Array]:
        return {}


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """loss = log Σ exp(logits) - logits[label] in nats, and whether it is a hit (0, 1): (…, V), i32 (…) → (…), (…).

    A hit, in every accuracy of the project: the label's logit is greater than all others, by more than TIE. A tie is no
    hit, so a model that gives all labels the same logit scores 0; nor is NaN.
    """
    logits = logits.astype(jnp.float32)
    # The label's logit is selected by comparison, not by a gather: a vocabulary that is sharded stays sharded. A label
    # of -1 (none) matches nothing; the loss is finite all the same, and callers give it weight 0.
    is_label = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == labels[..., None]
    label, others = jnp.where(is_label, logits, -jnp.inf).max(-1), jnp.where(is_label, -jnp.inf, logits).max(-1)
    # The greatest logit is subtracted, so no exponential overflows, and the loss is the same. It needs no gradient: its
    # two contributions cancel.
    shifted = logits - jax.lax.stop_gradient(jnp.maximum(label, others))[..., None]
    chosen = jnp.where(is_label, shifted, 0.0).sum(-1)
    return jnp.log(jnp.exp(shifted).sum(-1)) - chosen, (label - others > TIE).astype(jnp.float32)


def best_place(scores: Array) -> Array:
    """Scores (…, C) → the place of the best, of a tie the first; 0 where the greatest is NaN."""
    return cast(Array, (scores >= scores.max(-1, keepdims=True) - TIE).argmax(-1))


def has_best(scores: Array) -> Array:
    """Scores (…, C) → whether one is greater than all others: without one (a tie, NaN) there is no hit."""
    # No comparison with NaN is true: a row with NaN as its maximum has no best.
    return cast(Array, (scores >= scores.max(-1, keepdims=True) - TIE).sum(-1) == 1)


def is_hit(scores: np.ndarray, label: int) -> bool:
    """Scores (C,) → whether the label's is greater than all others, as in `cross_entropy`."""
    return bool(has_best(scores)) and int(scores.argmax()) == label


def without_padding(logits_BLC: jax.Array, mask_BL: jax.Array) -> jax.Array:
    """Returns the logits in float32 with padding at -1e10, so that no place of it is chosen.

    Finite and not -inf: a sequence that only fills up a batch is all padding, and its loss must not be NaN, though it
    has weight 0.
    """
    return jnp.where(mask_BL[:, :, None] > 0, logits_BLC.astype(jnp.float32), -1e10)


def span_candidates(logits_BLC: jax.Array, mask_BL: jax.Array, count: int) -> dict[str, jax.Array]:
    """Returns the best places for the start (C = 0) and the end (C = 1) of an answer, best first; ties go to the first.

    start_places, end_places i32 Bn, start_scores, end_scores f32 Bn; and null_scores f32 B, the sum of both at place 0.

    Differs: the original also ranks padding, which holds no answer, so it may keep fewer real candidates.
    """
    logits_BLC = logits_BLC.astype(jnp.float32)
    inside_BLC = jnp.where(mask_BL[:, :, None] > 0, logits_BLC, -jnp.inf)
    # top_k refuses more places than the sequence has; -inf keeps padding last.
    count = min(count, logits_BLC.shape[1])
    # Place 0 is the first token ([CLS]), where a question without an answer has both ends (run_squad.py).
    best: dict[str, jax.Array] = {"null_scores": logits_BLC[:, 0].sum(-1)}
    for number, end in enumerate(("start", "end")):
        best[f"{end}_scores"], best[f"{end}_places"] = jax.lax.top_k(inside_BLC[:, :, number], count)
    return best


def means(sums: dict[str, Sum]) -> dict[str, jax.Array]:
    """Returns the metrics: total / weight for each, and its exponential for a perplexity."""
    # Weight 0 (a batch with nothing to predict) gives 0 instead of NaN.
    metrics = {name: s.total / jnp.maximum(s.weight, 1e-9) for name, s in sums.items()}
    return {name: jnp.exp(x) if name.endswith("perplexity") else x for name, x in metrics.items()}


def mean(name: str, total: float, weight: float) -> float:
    """Returns the metric of totals that were added up on the host, as `means`."""
    value = float(total / max(weight, 1e-9))
    # exp overflows a float64 above 709.
    return math.exp(min(value, 700.0)) if name.endswith("perplexity") else value


class Objective(Protocol):
    """The contract of an objective.

    Attributes:
        heads: names of the heads that it trains
        terms: terms of its loss → their coefficients
    """

    @property
    def heads(self) -> tuple[str, ...]: ...
    @property
    def terms(self) -> dict[str, float]: ...

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns each term's weight over the whole batch, from the batch's fields alone."""
        ...

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        """Returns each term, and all other metrics, as sums over a part of the batch."""
        ...

    def predictions(self, outputs: Outputs) -> dict[str, jax.Array]:
        """Returns the predictions of a task, with B as their first dim; {} in pretraining."""
        ...


@dataclass(frozen=True)
class MlmNsp:
    """Masked tokens and next sentence (BERT, section 3.1): the mean over slots plus the mean over sequences. With the
    head `boundary` the masked tokens once more, from the two beside their span (SpanBERT, section 3.2)."""

    heads: tuple[str, ...] = ("mlm", "nsp")

    @property
    def terms(self) -> dict[str, float]:
        return {f"{head}_loss": 1.0 for head in self.heads}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """The original divides by Σ w + 1e-5."""
        slots, sequences = batch["slot_weights"].sum() + 1e-5, jnp.maximum(batch["valid"].sum(), 1.0)
        return {f"{head}_loss": sequences if head == "nsp" else slots for head in self.heads}

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        losses, hits = {}, {}
        for head in self.heads:
            # Slots are padded to P a sequence with weight 0; a sequence that only fills up a batch is not valid.
            # is_random 0 is the true next sentence, 1 a random one, as in the original. Its total loss adds the means.
            labels, weights = ("is_random", "valid") if head == "nsp" else ("labels", "slot_weights")
            loss, hit = cross_entropy(outputs.heads[head], batch[labels])
            losses[f"{head}_loss"] = Sum((loss * batch[weights]).sum(), batch[weights].sum())
            hits[f"{head}_accuracy"] = Sum((hit * batch[weights]).sum(), batch[weights].sum())
        return losses | hits

    def predictions(self, outputs: Outputs) -> dict[str, jax.Array]:
        return {}


@dataclass(frozen=True)
class NextTokenObjective:
    """The next token at every position (GPT): the mean over all that are predicted."""

    heads: tuple[str, ...] = ("lm",)
    terms: dict[str, float] = field(default_factory=lambda: {"lm_loss": 1.0})

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"lm_loss": jnp.maximum(batch["next_weights"].sum(), 1e-9)}

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        # The LM head returns losses and not logits: it scores the vocabulary chunk by chunk, so BLV is never in memory.
        scored = outputs.heads["lm"]
        # The alternatives of an example are sequences of their own to the head: BAL → (B·A)L.
        weights_BL = batch["next_weights"].reshape(scored.loss_BL.shape)
        return {
            "lm_loss": Sum(scored.total, weights_BL.sum()),
            "lm_accuracy": Sum((scored.hit_BL * weights_BL).sum(), weights_BL.sum()),
        }

    def predictions(self, outputs: Outputs) -> dict[str, jax.Array]:
        return {}


@dataclass(frozen=True)
class BiLmObjective:
    """The next word in both directions (ELMo; Peters et al. 2018, section 3.1): half the sum of the two means.

    The perplexity over both directions is `sampled` where the batch brings negatives (training), else `full`
    (evaluation). The sampled one is far lower, and says little about the full one.
    """

    heads: tuple[str, ...] = ("bilm",)
    terms: dict[str, float] = field(default_factory=lambda: {"forward_loss": 0.5, "backward_loss": 0.5})

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        # Two terms of coefficient 0.5, each with its own mean, as bilm-tf's 0.5 · (forward + backward).
        both = (("forward_loss", "next_weights"), ("backward_loss", "next_weights_backward"))
        return {term: jnp.maximum(batch[name].sum(), 1e-9) for term, name in both}

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        # The head has summed its losses over all words, with next_weights, in nats.
        forward, backward = (outputs.heads["bilm"][name].total for name in elmo.DIRECTIONS)
        ahead, behind = batch["next_weights"].sum(), batch["next_weights_backward"].sum()
        # Named apart so that nobody compares a training perplexity with one over the whole vocabulary.
        which = "sampled" if "negatives" in batch else "full"
        return {
            "forward_loss": Sum(forward, ahead),
            "backward_loss": Sum(backward, behind),
            f"{which}_perplexity": Sum(forward + backward, ahead + behind),
        }

    def predictions(self, outputs: Outputs) -> dict[str, jax.Array]:
        return {}


@dataclass(frozen=True)
class Classify:
    """A class for each example (BERT, section 4.1): cross entropy, each example weighted by its label."""

    heads: tuple[str, ...] = ("classify",)
    terms: dict[str, float] = field(default_factory=lambda: {"classify_loss": 1.0})

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"classify_loss": jnp.maximum(batch["weights"].sum(), 1e-9)}

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        # Class weights count in the loss alone: an accuracy counts every example once.
        weights_B, valid_B = batch["weights"], batch["valid"]
        loss_B, hit_B = cross_entropy(outputs.heads["classify"], batch["labels"])
        # Totals and weights, no means: evaluation adds them up over batches of different sizes.
        return {
            "classify_loss": Sum((loss_B * weights_B).sum(), weights_B.sum()),
            "accuracy": Sum((hit_B * valid_B).sum(), valid_B.sum()),
        }

    def predictions(self, outputs: Outputs) -> dict[str, jax.Array]:
        """scores f32 BC: the probability of each label."""
        return {"scores": jax.nn.softmax(outputs.heads["classify"])}


@dataclass(frozen=True)
class Regress:
    """A number for each example: its squared error."""

    heads: tuple[str, ...] = ("regress",)
    terms: dict[str, float] = field(default_factory=lambda: {"regress_loss": 1.0})

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"regress_loss": jnp.maximum(batch["valid"].sum(), 1e-9)}

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        # The head has one output: [B, 1] → [B].
        error_B = jnp.square(outputs.heads["regress"][:, 0] - batch["targets"])
        # Pearson and Spearman are no sums, and come from the gathered predictions.
        return {"regress_loss": Sum((error_B * batch["valid"]).sum(), batch["valid"].sum())}

    def predictions(self, outputs: Outputs) -> dict[str, jax.Array]:
        """values f32 B."""
        return {"values": outputs.heads["regress"][:, 0]}


@dataclass(frozen=True)
class Tag:
    """A tag for each word: cross entropy, weighted by the tag; with a CRF, the likelihood of the whole sequence.

    A word's tag is predicted at its first token (BERT, section 5.3), but by a GPT at its last: it sees no later tokens.
    """

    heads: tuple[str, ...] = ("tag",)
    terms: dict[str, float] = field(default_factory=lambda: {"tag_loss": 1.0})

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"tag_loss": jnp.maximum(batch["tag_weights"].sum(), 1e-9)}

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        weights_BL = batch["tag_weights"]
        # Tags are -1 at all other tokens of a word, at special tokens, and at padding.
        words_BL = (batch["tags"] >= 0) * batch["valid"][:, None]
        answer = outputs.heads["tag"]
        # A CRF answers with -log p of the whole chain of tags in each sequence, else with logits for each token.
        if isinstance(answer, CrfOutput):
            # A sequence whose chain is NaN has no best tags: none of its words is a hit.
            total, finite_B1 = (answer.loss_B * batch["valid"]).sum(), jnp.isfinite(answer.loss_B)[:, None]
            hit_BL = (answer.best_BL == batch["tags"]) & finite_B1
        else:
            loss_BL, hit_BL = cross_entropy(answer, batch["tags"])
            total = (loss_BL * weights_BL).sum()
        return {
            "tag_loss": Sum(total, weights_BL.sum()),
            "accuracy": Sum((hit_BL * words_BL).sum(), words_BL.sum()),
        }

    def predictions(self, outputs: Outputs) -> dict[str, jax.Array]:
        """tags i32 BL; scores f32 BL, their probabilities (with a CRF: their marginals); may_hit bool BL, False for a
        tag that is one of a tie (with a CRF: for NaN)."""
        answer = outputs.heads["tag"]
        if isinstance(answer, CrfOutput):
            # The best chain may hold a tag that is not its word's most probable one; its own marginal is the score.
            scores_BL = jnp.take_along_axis(answer.marginals_BLC, answer.best_BL[:, :, None], 2)[:, :, 0]
            return {"tags": answer.best_BL, "scores": scores_BL, "may_hit": jnp.isfinite(scores_BL)}
        # The best of a tie, or of NaN, is its first tag, which `cross_entropy` would not count as a hit.
        logits_BLC = answer.astype(jnp.float32)
        tags_BL, may_hit_BL = best_place(logits_BLC).astype(jnp.int32), has_best(logits_BLC)
        return {"tags": tags_BL, "scores": jax.nn.softmax(answer).max(-1), "may_hit": may_hit_BL}


@dataclass(frozen=True)
class ChoiceObjective:
    """The right one of an example's alternatives: cross entropy over them (Radford et al. 2018, section 3.3)."""

    heads: tuple[str, ...] = ("choice",)
    terms: dict[str, float] = field(default_factory=lambda: {"choice_loss": 1.0})

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"choice_loss": jnp.maximum(batch["weights"].sum(), 1e-9)}

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        # Missing alternatives have a logit of -inf, so they add nothing to the softmax and can never be the best.
        weights_B, valid_B = batch["weights"], batch["valid"]
        loss_B, hit_B = cross_entropy(outputs.heads["choice"], batch["labels"])
        return {
            "choice_loss": Sum((loss_B * weights_B).sum(), weights_B.sum()),
            "accuracy": Sum((hit_B * valid_B).sum(), valid_B.sum()),
        }

    def predictions(self, outputs: Outputs) -> dict[str, jax.Array]:
        """scores f32 BA: the probability of each alternative, 0 for missing ones."""
        # Over the alternatives, which the head has joined again to one row an example.
        return {"scores": jax.nn.softmax(outputs.heads["choice"])}


@dataclass(frozen=True)
class SpanObjective:
    """The first and the last token of an answer: half the sum of both cross entropies over the tokens of the sequence
    (BERT, section 4.2; run_squad.py). Differs: the original's softmax includes padding, so its loss depends on it."""

    heads: tuple[str, ...] = ("span",)
    terms: dict[str, float] = field(default_factory=lambda: {"span_loss": 1.0})
    n_best: int = 20

    # Windows without the answer have start and end 0 and count, as in run_squad.py; filled-up ones weigh 0.
    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"span_loss": jnp.maximum(batch["weights"].sum(), 1e-9)}

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        logits_BLC = without_padding(outputs.heads["span"], outputs.encoding.mask_BL)
        # C = 0 scores the start, C = 1 the end; no accuracy here: exact match and F1 come from gathered answers.
        start_B, _ = cross_entropy(logits_BLC[:, :, 0], batch["starts"])
        end_B, _ = cross_entropy(logits_BLC[:, :, 1], batch["ends"])
        return {"span_loss": Sum(((start_B + end_B) / 2 * batch["weights"]).sum(), batch["weights"].sum())}

    def predictions(self, outputs: Outputs) -> dict[str, jax.Array]:
        """The places that score best as start and end, as `span_candidates`."""
        return span_candidates(outputs.heads["span"], outputs.encoding.mask_BL, self.n_best)


@dataclass(frozen=True)
class WithLmLoss:
    """L3 = L2 + weight · L1 (Radford et al. 2018, equation 5): a task's loss plus the LM loss on its examples' words.

    L1 is the mean over each sequence, then over sequences, as in the original's code.
    """

    task: Objective
    weight: float

    # Both objectives read one forward pass: the LM head is one more head on the same backbone.
    @property
    def heads(self) -> tuple[str, ...]:
        return (*self.task.heads, "lm")

    @property
    def terms(self) -> dict[str, float]:
        return {**self.task.terms, "lm_loss": self.weight}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        # The layout of a task's batch gives next_weights 1 / (tokens to predict): a sum over them is a mean over each
        # sequence.
        return {**self.task.weights(batch), **NextTokenObjective().weights(batch)}

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        return {**self.task.sums(outputs, batch), **NextTokenObjective().sums(outputs, batch)}

    def predictions(self, outputs: Outputs) -> dict[str, jax.Array]:
        return self.task.predictions(outputs)


@dataclass(frozen=True)
class WithMixPenalty:
    """loss + weight · Σ mixing weight²: an L2 penalty, which keeps a layer mix near even (Peters et al. 2018, 3.3)."""

    task: Objective
    weight: float

    @property
    def heads(self) -> tuple[str, ...]:
        return self.task.heads

    @property
    def terms(self) -> dict[str, float]:
        return {**self.task.terms, "mix_penalty": self.weight}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {**self.task.weights(batch), "mix_penalty": jnp.maximum(batch["valid"].sum(), 1e-9)}

    def sums(self, outputs: Outputs, batch: Batch) -> dict[str, Sum]:
        # Model.apply sums the squares of the raw weights (before the softmax, without gamma), as bilm-tf's l2_coef.
        assert outputs.mix_squares is not None
        # The penalty counts once a batch: each microbatch adds it in proportion to its examples.
        examples = batch["valid"].sum()
        return {**self.task.sums(outputs, batch), "mix_penalty": Sum(outputs.mix_squares * examples, examples)}

    def predictions(self, outputs: Outputs) -> dict[str, jax.Array]:
        return self.task.predictions(outputs)


# By `run.objective`: the family's own in pretraining, else the kind of the task.
OBJECTIVES: dict[str, Objective] = {
    "mlm_nsp": MlmNsp(),
    "lm": NextTokenObjective(),
    "bilm": BiLmObjective(),
    "static": NoLoss(),
    "classify": Classify(),
    "regress": Regress(),
    "tag": Tag(),
    "choice": ChoiceObjective(),
    "span": SpanObjective(),
}


def objective_of(run: Run) -> Objective:
    """Returns the objective of a run, wrapped for the terms that task.lm_weight and head.mix_l2 add to its loss."""
    objective = OBJECTIVES[run.objective]
    if run.objective == "span":
        objective = SpanObjective(n_best=run.task.n_best)
    if run.objective == "mlm_nsp" and run.data.span_boundary:
        objective = MlmNsp((*MlmNsp.heads, "boundary"))
    objective = WithLmLoss(objective, run.task.lm_weight) if run.task.lm_weight else objective
    return WithMixPenalty(objective, run.head.mix_l2) if run.head.mix_l2 else objective


def batch_fields(run: Run) -> dict[str, str]:
    """Returns all fields of a run's training batches: {"tokens": "i32 BL", …}."""
    if run.task.kind != "off":
        return task_fields(run.task.kind, run.family, run.task.symmetric, run.head.pair)
    return run.text.pretraining_fields(run.data)


def batch_sizes(run: Run, batch: int, choices: int = 2) -> dict[str, int]:
    """Returns the sizes of a batch by letter, for a batch of `batch` examples: {"B": 32, "L": 128, "P": 20}."""
    fields = batch_fields(run)
    # A letter is there only if a field has it: what a family does not read has no size.
    slots, words = {"P": run.data.slots} if "slots" in fields else {}, {}
    # Alternatives of a choice, or the two orders or texts of a pair, have an axis of their own (BAL).
    alternatives = {"A": choices} if "A" in fields.get("mask", "") else {}
    # Rows that sequences share: as many as there are sequences, which is the most that a batch takes.
    rows = {"X": batch * alternatives.get("A", 1), "Y": run.data.length} if "begins" in fields else {}
    if "types" in fields:
        # At most all words of a batch, in both directions, are distinct. The CNN runs once for each of these R words.
        types = run.data.word_types or 2 * batch * run.data.length + elmo.FIRST_WORD
        words = {"R": types, "W": WORD_CHARS, "_": 2, **({"S": run.data.negatives} if run.data.negatives else {})}
    return {"B": batch, "L": run.data.length, **slots, **alternatives, **rows, **words}


def loss(objective: Objective, sums: dict[str, Sum], weights: dict[str, jax.Array]) -> jax.Array:
    """Σ coefficient · total / weight over the terms."""
    # All totals of a microbatch over the weight of the whole batch: the losses of the parts add up to the batch's.
    return jnp.stack([c * sums[name].total / weights[name] for name, c in objective.terms.items()]).sum()
