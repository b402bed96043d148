"""Optimizers and schedules. The learning rate is a function of the step alone; an update is p -= lr·update."""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from contexture.data.errors import did_you_mean
from contexture.models.shapes import Params, by_path, path_of
from contexture.train.errors import ConfigError
from contexture.train.optim.adafactor import scale_by_adafactor
from contexture.train.optim.moments import in_bfloat16
from contexture.train.settings.run import Run
from contexture.train.settings.schedule import phase_warmups
from contexture.train.settings.sections import OptimConfig

Multipliers: TypeAlias = Params
"""The learning-rate multiplier of each parameter, an array that broadcasts over it."""


def learning_rate(
    config: OptimConfig, steps: int, step: jax.Array, peak_lr: float | jax.Array | None = None
) -> jax.Array:
    """The learning rate of step t (0-based, before the update), in float32; W steps of warm-up, T steps in all:

        bert            peak·t/W while t < W, then peak·(1 - t/T)
        linear, cosine  peak·(t+1)/W while t < W, then down to final_lr·peak at T, or at decay_steps
        gpt1            peak·t/W while t ≤ W, times 1 - t/T throughout (finetune-transformer-lm, opt.py)

    `bert` and `gpt1` begin at 0: as in the originals, the first step changes nothing. `bert` counts its fall from step
    0, so at t = W it drops from peak·(W-1)/W to peak·(1 - W/T) (google-research/bert, optimization.py).

    peak_lr: the peak in place of optim.peak_lr; it may be traced.
    """
    peak = config.peak_lr if peak_lr is None else peak_lr
    # Float32 is exact up to step 16,777,216.
    t, W, T = step.astype(jnp.float32), float(config.warmup), float(steps)
    if config.schedule == "gpt1":
        # The original's warm-up may end between two steps, so a fraction is not rounded to steps.
        W = config.warmup_fraction * T or W
        return peak * jnp.where(t > W, 1.0, t / max(W, 1e-9)) * (1.0 - jnp.minimum(t, T) / T)
    if config.schedule == "bert":
        rising, falling = t / max(W, 1.0), 1.0 - jnp.minimum(t, T) / T
    else:
        # The fraction of the fall that is done: 0 at the end of the warm-up, 1 from the last step (or decay_steps) on.
        done = jnp.clip((t - W) / max((config.decay_steps or T) - W, 1.0), 0.0, 1.0)
        shape = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + jnp.cos(math.pi * done))
        rising, falling = (t + 1.0) / max(W, 1.0), config.final_lr + (1.0 - config.final_lr) * shape
    return peak * jnp.where(t < W, rising, falling)


def learning_rate_of(run: Run, step: jax.Array, peak_lr: float | jax.Array | None = None) -> jax.Array:
    """The learning rate of step t of a run: with optim.phase-lr each of its phases has the whole schedule for itself,
    else one runs through all. peak_lr: as in `learning_rate`."""
    config, firsts = run.optim, [phase.first for phase in run.data.stretches]
    if not config.phase_lr:
        return learning_rate(config, run.steps, step, peak_lr)
    rates = []
    for first, peak, (count, _, warmup) in zip(firsts, config.phase_lr, phase_warmups(run), strict=True):
        # A schedule counts from its phase's first step; its fraction is in the warm-up already.
        own = dataclasses.replace(config, warmup=warmup, warmup_fraction=0.0)
        rates.append(learning_rate(own, count, step - first, peak))
    # All of them, and the one of the phase: the step is a number of the compiled program.
    return jnp.stack(rates)[(step >= jnp.asarray(firsts)).sum() - 1]


class Moments(NamedTuple):
    """Adam's running means of the gradient and of its square."""

    mu: optax.Params
    nu: optax.Params


def _scale_by_bert_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """m/(sqrt(v) + eps), without bias correction (google-research/bert, optimization.py).

    Without it the first updates are too large by up to 1/sqrt(1 - b2); the warm-up makes up for that.
    """

    def init(params: optax.Params) -> optax.OptState:
        return Moments(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        state = cast(Moments, state)
        # eps is added behind the root, 1e-6 in the original; optax's Adam has it there as well, after the correction.
        mu = jax.tree.map(lambda m, g: b1 * m + (1.0 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1.0 - b2) * jnp.square(g), state.nu, updates)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), Moments(mu, nu)

    return optax.GradientTransformation(init, update)


# The names mu and nu are optax's: paths end in …/mu/<parameter>, by which shardings are found.
class CountedMoments(NamedTuple):
    """Moments, and how many updates they have seen."""

    mu: optax.Params
    nu: optax.Params
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]


def _scale_by_gpt1_adam(
    b1: float, b2: float, eps: float, decay: float, no_decay: tuple[str, ...]
) -> optax.GradientTransformation:
    """sqrt(1 - b2^t)/(1 - b1^t) · (m/(sqrt(v) + eps) + decay·p) (finetune-transformer-lm, opt.py).

    Unlike AdamW's, the bias correction also scales the decay, and not eps.
    """

    def init(params: optax.Params) -> optax.OptState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return CountedMoments(zeros, jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        assert params is not None
        state = cast(CountedMoments, state)
        mu = jax.tree.map(lambda m, g: b1 * m + (1.0 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1.0 - b2) * jnp.square(g), state.nu, updates)
        # The count is of updates made, not of steps: a skipped step keeps the old state.
        t = (state.count + 1).astype(jnp.float32)
        correction = jnp.sqrt(1.0 - b2**t) / (1.0 - b1**t)
        # The decay is part of the update here, so no add_decayed_weights follows (finetune-transformer-lm, opt.py).
        pull = jax.tree.map(lambda p, d: decay * d * p, params, decayed(params, no_decay))
        corrected = jax.tree.map(lambda m, v, w: correction * (m / (jnp.sqrt(v) + eps) + w), mu, nu, pull)
        return corrected, CountedMoments(mu, nu, state.count + 1)

    return optax.GradientTransformation(init, update)


def decayed(params: optax.Params, no_decay: tuple[str, ...]) -> optax.Params:
    """Returns a mask, True for each parameter with weight decay: its path contains none of the words."""
    # By name, as BERT's exclude_from_weight_decay (LayerNorm, layer_norm, bias); embeddings are decayed.
    return jax.tree_util.tree_map_with_path(lambda k, _: not any(word in path_of(k) for word in no_decay), params)


def lr_multipliers(config: OptimConfig, params: Params) -> Multipliers | None:
    """Returns the learning rate's multiplier of each parameter, 0 if it is frozen; None if all are 1.

        layer n of N (from 0)      layer_decay^(N - 1 - n)
        embeddings                 layer_decay^N
        heads and pooler           1
        mixing weights of a head   mix_lr/peak_lr

    (Howard and Ruder 2018, section 3.2; per layer.) Raises ConfigError for frozen parameters that do not exist, and if
    all are frozen.
    """
    paths = list(by_path(params))
    # Mixing weights have a rate of their own, expressed as a multiple of the peak: the schedule's shape is the same.
    mix = config.mix_lr / config.peak_lr if config.mix_lr and any(map(_is_mix, paths)) else 1.0
    # A backbone that is frozen whole is not among params, and no layer has a rate of its own.
    whole = "backbone" in params and not config.lora_rank
    frozen = tuple(word for word in config.frozen if whole or "backbone" not in word)
    layered = whole and (bool(frozen) or config.frozen_layers > 0 or config.layer_decay != 1.0)
    if not layered and not frozen and mix == 1.0:
        return None
    # Stacked on a leading N axis; static vectors have none.
    stacked = [x for path, x in by_path(params).items() if path.startswith("backbone/layers/")] if layered else []
    layers = stacked[0].shape[0] if stacked else 0
    if layered and config.frozen_layers > layers:
        raise ConfigError(f"optim.frozen-layers={config.frozen_layers} is more than the model's {layers} layers")
    # A word that matches nothing is a typing mistake that would silently train everything.
    for word in frozen:
        if not any(word in path for path in paths):
            parts = dict.fromkeys(part for path in paths for part in path.split("/"))
            raise ConfigError(
                f"optim.frozen={word} is in the path of no parameter{did_you_mean(word, parts)}; "
                "`contexture show RUN` lists the paths"
            )
    # layer 0 is the lowest: [decay^(N-1), …, decay, 1].
    multiplier_N = config.layer_decay ** np.arange(layers - 1, -1, -1.0)
    multiplier_N[: config.frozen_layers] = 0.0

    def multiplier(keys: tuple[object, ...], x: jax.Array) -> np.ndarray:
        path = path_of(keys)
        if any(word in path for word in frozen):
            return np.zeros((1,) * len(x.shape), np.float32)
        if layered and path.startswith("backbone/layers/"):
            # All layers are stacked in one array: the multiplier broadcasts along its first dim.
            return multiplier_N.reshape(-1, *(1,) * (len(x.shape) - 1)).astype(np.float32)
        # The embeddings lie below layer 0: frozen with any layer, and one power of the decay further down.
        bottom = path.startswith("backbone/embeddings/")
        value = 0.0 if bottom and config.frozen_layers else config.layer_decay**layers if bottom else 1.0
        value = mix if _is_mix(path) else value
        return np.full((1,) * len(x.shape), value, np.float32)

    # NumPy and not jnp: the step looks at the values while it is traced, to stop gradients at what is frozen whole.
    multipliers = jax.tree_util.tree_map_with_path(multiplier, params)
    if not any(x.any() for x in jax.tree.leaves(multipliers)):
        raise ConfigError(f"optim.frozen={' '.join(config.frozen)} leaves nothing to train; name fewer parameters")
    return multipliers


def _is_mix(path: str) -> bool:
    """Returns whether a parameter is the weights of a scalar mix, which has a learning rate of its own."""
    return path.endswith("mix/weights")


def _clip(limit: float) -> optax.GradientTransformation:
    """gradient · min(1, limit/|gradient|), as TensorFlow's clip_by_global_norm.

    One factor for all, which XLA multiplies within Adam's own loops. optax divides each number instead, and XLA writes
    the quotients to memory and reads them again.
    """
    limit = min(limit, float(np.finfo(np.float32).max))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        # Whole gradients of all devices: the norm is of the batch, not of a device's part as on BERT's TPU cores.
        norm = optax.tree.norm(updates)
        factor = jnp.where(norm < limit, 1.0, limit / norm)
        return jax.tree.map(lambda g: (g * factor).astype(g.dtype), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _scale_by_trust_ratio(no_decay: tuple[str, ...]) -> optax.GradientTransformation:
    """update · |p|/|update| for each kernel and table of each layer (LAMB: You et al. 2020, algorithm 2, phi the
    identity); 1 where either norm is 0.

    As in the authors' code, what is not decayed (norms, biases) is not scaled either.
    """

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        assert params is not None

        def scaled(keys: tuple[object, ...], u: jax.Array, p: jax.Array, is_scaled: bool) -> jax.Array:
            if not is_scaled:
                return u
            # All layers are stacked in one array, and each has a ratio of its own: optax's is of whole arrays.
            axes = tuple(range("layers/" in path_of(keys), p.ndim))
            length_p, length_u = (jnp.sqrt(jnp.square(x).sum(axes, keepdims=True)) for x in (p, u))
            both = (length_p > 0.0) & (length_u > 0.0)
            return u * jnp.where(both, length_p / jnp.where(both, length_u, 1.0), 1.0)

        return jax.tree_util.tree_map_with_path(scaled, updates, params, decayed(params, no_decay)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


@dataclass(frozen=True)
class UpdateRule:
    """What an optimizer does with the clipped gradient.

    Args:
        update: settings → gradient ↦ update, which the step multiplies with -lr.
        adds_decay: the update includes the weight decay; else decay·p is added behind it.
        scales_gradient: optim.gradient-scale multiplies the gradient before it is clipped.
        scales_layers: the update, decay included, is scaled to the length of each layer's parameters.
    """

    update: Callable[[OptimConfig], optax.GradientTransformation]
    adds_decay: bool = False
    scales_gradient: bool = False
    scales_layers: bool = False


def _adam(config: OptimConfig) -> optax.GradientTransformation:
    return optax.scale_by_adam(config.b1, config.b2, config.eps)


OPTIMIZERS: dict[str, UpdateRule] = {
    "bert": UpdateRule(lambda config: _scale_by_bert_adam(config.b1, config.b2, config.eps)),
    "adamw": UpdateRule(_adam),
    "lamb": UpdateRule(_adam, scales_layers=True),
    "adafactor": UpdateRule(lambda config: scale_by_adafactor()),
    "gpt1": UpdateRule(
        lambda config: _scale_by_gpt1_adam(config.b1, config.b2, config.eps, config.weight_decay, config.no_decay),
        adds_decay=True,
    ),
    # As in TensorFlow's Adagrad: the sums of squares start at 1, and there is no eps. ELMo's original multiplies its
    # loss with the number of unrolled steps, and clips that gradient.
    "adagrad": UpdateRule(
        lambda config: optax.scale_by_rss(initial_accumulator_value=1.0, eps=0.0), scales_gradient=True
    ),
}
"""By optim.name."""


def optimizer(config: OptimConfig) -> optax.GradientTransformation:
    """Returns clip → Adam, Adafactor or Adagrad → + decay·p, for LAMB scaled by layer; the training step multiplies the
    result with -lr.

    Differs: the original clips each TPU core's own gradient before the cores' gradients are summed; here the whole
    batch's gradient is clipped, so that a step does not depend on the number of devices.
    """
    clip = _clip(config.clip) if config.clip else optax.identity()
    stored = functools.partial(in_bfloat16, stochastic=config.stochastic_rounding)
    as_stored = stored if config.moments == "bfloat16" else lambda tx: tx
    rule = OPTIMIZERS[config.name]
    if rule.scales_gradient:
        clip = optax.chain(optax.scale(config.gradient_scale), clip)
    if rule.adds_decay:
        return optax.chain(clip, as_stored(rule.update(config)))
    # Behind Adam, and so decoupled: the moments see the gradient of the loss alone.
    decay = optax.add_decayed_weights(config.weight_decay, lambda params: decayed(params, config.no_decay))
    ratio = [_scale_by_trust_ratio(config.no_decay)] if rule.scales_layers else []
    return optax.chain(clip, as_stored(rule.update(config)), decay, *ratio)
