"""Trains probes, several together: they read the same batches and differ in the layers that they see."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from contexture.analysis.options import ProbeOptions
from contexture.analysis.probing.probe_examples import ProbeBatch, ProbeExamples, batches
from contexture.analysis.probing.probe_model import (
    ProbeParams,
    binary_cross_entropy,
    init_probe,
    mix_weights,
    probe_logits,
)
from contexture.analysis.probing.probe_scores import Counts, micro_f1
from contexture.data.cancel import NEVER, CancelToken


@dataclass(frozen=True)
class TrainedProbes:
    """P probes at their best epoch.

    Args:
        params: their parameters, each with a leading axis P.
        layers_PN: bool, which layers of the features each probe reads.
        epochs_P: the epoch, from 1, whose parameters these are; 0: the initial ones.
        trained: how many epochs were computed.
    """

    params: ProbeParams
    layers_PN: np.ndarray
    epochs_P: np.ndarray
    trained: int

    @property
    def weights_PN(self) -> np.ndarray:
        """The weights of the layers in each probe's mix, after the softmax."""
        weights = jax.vmap(mix_weights)(self.params["mix"]["weights_N"], jnp.asarray(self.layers_PN))
        return np.asarray(weights, np.float64)

    @property
    def gamma_P(self) -> np.ndarray:
        """The factor of each probe's mix."""
        return np.asarray(self.params["mix"]["gamma"], np.float64)


def layers_of(which: Sequence[Sequence[int]], layers: int) -> np.ndarray:
    """Returns bool PN, true where probe p reads layer n: `[[0], [0, 1]]` → `[[1, 0], [1, 1]]`."""
    layers_PN = np.zeros((len(which), layers), bool)
    for probe, own in enumerate(which):
        layers_PN[probe, list(own)] = True
    return layers_PN


def train_probes(
    train: ProbeExamples,
    dev: ProbeExamples,
    units_UND: np.ndarray,
    layers_PN: np.ndarray,
    how: ProbeOptions,
    cancel: CancelToken = NEVER,
) -> TrainedProbes:
    """Trains a probe for each row of `layers_PN`: Adam at a constant rate, stopped early by the held-out F1.

    Each starts from the same random parameters, and ends with the parameters it would have if it were trained alone.

    Differs: the paper's rate is 1e-4, and halved when the held-out score no longer improves, its batches hold 32
    sentences, and gradients are clipped (2019a, appendix); here the rate is constant, and the training stops.

    Args:
        train: the training targets.
        dev: the held-out targets.
        units_UND: the features of all units.
        layers_PN: bool, which layers each probe reads.
        how: epochs, patience, rate, batch and seed.
    """
    _, layers, width = units_UND.shape
    count = len(layers_PN)
    params, moments = _start(how.seed, (layers, width, train.spans_TS2.shape[1], train.labels_TC.shape[1]), count)
    rate, read_PN = jnp.float32(how.lr), jnp.asarray(layers_PN)
    order = np.random.default_rng(how.seed)
    best = params
    # The F1 decides; while it is 0, the loss does: in the first epochs no label's probability may be above 1/2.
    best_P = np.full((count, 2), -np.inf)
    epochs_P, waited_P = np.zeros(count, np.int64), np.zeros(count, np.int64)
    epoch = 0
    while epoch < how.epochs and (waited_P < how.patience).any():
        epoch += 1
        for batch in batches(train, units_UND, how.batch, order):
            cancel.check()
            params, moments = _step(params, moments, rate, read_PN, *_fields(batch))
        counts, losses_P = measure_probes(params, layers_PN, dev, units_UND, how.batch, cancel)
        f1_P = np.array([micro_f1(each) for each in counts])
        scores_P = np.stack([f1_P, np.where(f1_P > 0, 0, -losses_P)], -1)
        better_P = (waited_P < how.patience) & [tuple(a) > tuple(b) for a, b in zip(scores_P, best_P, strict=True)]
        best_P[better_P] = scores_P[better_P]
        best = _chosen(jnp.asarray(better_P), params, best)
        epochs_P[better_P] = epoch
        # A probe that ran out of patience stays finished while others go on: `better_P` is false for it above.
        waited_P = np.where(better_P, 0, waited_P + 1)
    return TrainedProbes(best, layers_PN, epochs_P, epoch)


def measure_probes(
    params: ProbeParams,
    layers_PN: np.ndarray,
    examples: ProbeExamples,
    units_UND: np.ndarray,
    batch: int,
    cancel: CancelToken = NEVER,
) -> tuple[list[Counts], np.ndarray]:
    """Returns each probe's counts of right and wrong labels, and its mean loss, f64 P.

    A label is predicted if its sigmoid is above 1/2.
    """
    count, read_PN = len(layers_PN), jnp.asarray(layers_PN)
    totals_P4, targets = np.zeros((count, 4)), 0
    for each in batches(examples, units_UND, batch):
        cancel.check()
        totals_P4 += np.asarray(_measure(params, read_PN, *_fields(each)), np.float64)
        targets += len(each.numbers)
    missed = int(examples.missed_T.sum())
    counts = [Counts(int(right), int(wrong), int(lacking) + missed) for right, wrong, lacking, _ in totals_P4]
    return counts, totals_P4[:, 3] / max(targets, 1)


def predict_labels(
    probes: TrainedProbes, examples: ProbeExamples, units_UND: np.ndarray, batch: int = 64
) -> np.ndarray:
    """Returns the probability of each label of each target, f32 [P, T, C]."""
    read_PN = jnp.asarray(probes.layers_PN)
    probabilities = np.zeros((len(probes.layers_PN), *examples.labels_TC.shape), np.float32)
    for each in batches(examples, units_UND, batch):
        units_BSWND, inside_BSW, _, _ = _fields(each)
        logits_PBC = _logits(probes.params, read_PN, units_BSWND, inside_BSW)
        probabilities[:, each.numbers] = np.asarray(jax.nn.sigmoid(logits_PBC))[:, : len(each.numbers)]
    return probabilities


def _fields(batch: ProbeBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return batch.units_BSWND, batch.inside_BSW, batch.labels_BC, batch.weight_B


@functools.partial(jax.jit, static_argnums=(1, 2))
def _start(seed: int, sizes: tuple[int, int, int, int], count: int) -> tuple[ProbeParams, optax.OptState]:
    one = init_probe(jax.random.key(seed), *sizes)
    # All probes start from the same parameters, so that they differ only in the layers that they read.
    params: ProbeParams = jax.tree.map(lambda x: jnp.repeat(x[None], count, 0), one)
    return params, optax.adam(0.0).init(params)  # the rate is given to each step


_logits_of_all = jax.vmap(probe_logits, in_axes=(0, 0, None, None))
_logits = jax.jit(_logits_of_all)


@functools.partial(jax.jit, donate_argnums=(1,))
def _step(
    params: ProbeParams,
    moments: optax.OptState,
    rate: jax.Array,
    layers_PN: jax.Array,
    units_BSWND: jax.Array,
    inside_BSW: jax.Array,
    labels_BC: jax.Array,
    weight_B: jax.Array,
) -> tuple[ProbeParams, optax.OptState]:
    """A step of all probes. The parameters are not donated: they may be the best so far."""

    def loss(params: ProbeParams) -> jax.Array:
        logits_PBC = _logits_of_all(params, layers_PN, units_BSWND, inside_BSW)
        losses_PB = jax.vmap(binary_cross_entropy, in_axes=(0, None))(logits_PBC, labels_BC)
        # The probes share no parameters, so the gradient of the sum of their losses holds each one's own gradient.
        return (losses_PB * weight_B[None]).sum() / weight_B.sum()

    # The rate is an argument, so that one compiled step serves every rate.
    updates, moments = optax.adam(rate).update(jax.grad(loss)(params), moments)
    return optax.apply_updates(params, updates), moments  # pyright: ignore[reportReturnType]


@jax.jit
def _measure(
    params: ProbeParams,
    layers_PN: jax.Array,
    units_BSWND: jax.Array,
    inside_BSW: jax.Array,
    labels_BC: jax.Array,
    weight_B: jax.Array,
) -> jax.Array:
    """Returns f32 P4: true positives, false positives, false negatives, the sum of losses."""
    logits_PBC = _logits_of_all(params, layers_PN, units_BSWND, inside_BSW)
    there_1B1 = weight_B[None, :, None]
    predicted_PBC, labels_1BC = (logits_PBC > 0) * there_1B1, (labels_BC * weight_B[:, None])[None]
    losses_PB = jax.vmap(binary_cross_entropy, in_axes=(0, None))(logits_PBC, labels_BC) * weight_B[None]
    right_P = (predicted_PBC * labels_1BC).sum((1, 2))
    return jnp.stack([right_P, predicted_PBC.sum((1, 2)) - right_P, labels_1BC.sum() - right_P, losses_PB.sum(1)], -1)


@jax.jit
def _chosen(better_P: jax.Array, new: ProbeParams, old: ProbeParams) -> ProbeParams:
    def choose(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(better_P.reshape(-1, *[1] * (x.ndim - 1)), x, y)

    return jax.tree.map(choose, new, old)
