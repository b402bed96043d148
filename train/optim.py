"""Optimizers and schedules. The learning rate is a function of the step alone; an update is p -= lr·update."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from contexture.data.errors import did_you_mean
from contexture.models.shapes import by_path, path_of
from contexture.train.errors import ConfigError
from contexture.train.options import OptimConfig


def learning_rate(config: OptimConfig, steps: int, step: jax.Array) -> jax.Array:
    """The rate of step (0-based, before the update), in float32.

    `bert`: peak·t/W while t < W, then peak·(1 - t/T), so that it falls from peak·(W-1)/W to peak·(1 - W/T) at t = W.
    `linear`, `cosine`: peak·(t+1)/W while t < W, then down to final_lr·peak at T, or at decay_steps.
    `gpt1`: peak·t/W while t ≤ W, times 1 - t/T throughout (finetune-transformer-lm, opt.py): 0 in the first step.
    """
    t, W, T = step.astype(jnp.float32), float(config.warmup), float(steps)
    if config.schedule == "gpt1":
        W = config.warmup_fraction * T or W
        return config.peak_lr * jnp.where(t > W, 1.0, t / max(W, 1e-9)) * (1.0 - jnp.minimum(t, T) / T)
    if config.schedule == "bert":
        rising, falling = t / max(W, 1.0), 1.0 - jnp.minimum(t, T) / T
    else:
        done = jnp.clip((t - W) / max((config.decay_steps or T) - W, 1.0), 0.0, 1.0)
        shape = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + jnp.cos(math.pi * done))
        rising, falling = (t + 1.0) / max(W, 1.0), config.final_lr + (1.0 - config.final_lr) * shape
    return config.peak_lr * jnp.where(t < W, rising, falling)


class Moments(NamedTuple):
    """Adam's running means of the gradient and of its square."""

    mu: Any
    nu: Any


def _scale_by_bert_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """m/(sqrt(v) + eps), without bias correction (google-research/bert, optimization.py)."""

    def init(params: Any) -> Moments:
        return Moments(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Moments]:
        mu = jax.tree.map(lambda m, g: b1 * m + (1.0 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1.0 - b2) * jnp.square(g), state.nu, grads)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), Moments(mu, nu)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


class CountedMoments(NamedTuple):
    """Moments, and how many updates they have seen."""

    mu: Any
    nu: Any
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]


def _scale_by_gpt1_adam(
    b1: float, b2: float, eps: float, decay: float, no_decay: tuple[str, ...]
) -> optax.GradientTransformation:
    """sqrt(1 - b2^t)/(1 - b1^t) · (m/(sqrt(v) + eps) + decay·p) (finetune-transformer-lm, opt.py)."""

    def init(params: Any) -> CountedMoments:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return CountedMoments(zeros, jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32))

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, CountedMoments]:
        mu = jax.tree.map(lambda m, g: b1 * m + (1.0 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1.0 - b2) * jnp.square(g), state.nu, grads)
        t = (state.count + 1).astype(jnp.float32)
        correction = jnp.sqrt(1.0 - b2**t) / (1.0 - b1**t)
        pull = jax.tree.map(lambda p, d: decay * d * p, params, decayed(params, no_decay))
        updates = jax.tree.map(lambda m, v, w: correction * (m / (jnp.sqrt(v) + eps) + w), mu, nu, pull)
        return updates, CountedMoments(mu, nu, state.count + 1)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def decayed(params: Any, no_decay: tuple[str, ...]) -> Any:
    """True for each parameter that weight decay pulls on: whose path holds none of the words."""
    return jax.tree_util.tree_map_with_path(lambda k, _: not any(word in path_of(k) for word in no_decay), params)


def lr_multipliers(config: OptimConfig, params: Any) -> Any | None:
    """What share of the learning rate each parameter has: an array that broadcasts over it, 0 where it is not trained;
    None where all have the whole.

    With N layers, layer n (from 0) has `layer_decay`^(N - 1 - n) and the embeddings `layer_decay`^N; all else is above
    the layers. (Howard and Ruder 2018, section 3.2; per layer.)
    """
    if not config.frozen and not config.frozen_layers and config.layer_decay == 1.0:
        return None
    layers = jax.tree.leaves(params["backbone"]["layers"])[0].shape[0]
    if config.frozen_layers > layers:
        raise ConfigError(f"optim.frozen-layers={config.frozen_layers} is more than the model's {layers} layers")
    paths = list(by_path(params))
    for word in config.frozen:
        if not any(word in path for path in paths):
            parts = dict.fromkeys(part for path in paths for part in path.split("/"))
            raise ConfigError(
                f"optim.frozen={word} is in the path of no parameter{did_you_mean(word, parts)}; "
                "`contexture show RUN` lists the paths"
            )
    share_N = config.layer_decay ** np.arange(layers - 1, -1, -1.0)
    share_N[: config.frozen_layers] = 0.0

    def share(keys: tuple[Any, ...], x: Any) -> np.ndarray:
        path = path_of(keys)
        if any(word in path for word in config.frozen):
            return np.zeros((1,) * len(x.shape), np.float32)
        if path.startswith("backbone/layers/"):
            return share_N.reshape(-1, *(1,) * (len(x.shape) - 1)).astype(np.float32)
        bottom = path.startswith("backbone/embeddings/")
        value = 0.0 if bottom and config.frozen_layers else config.layer_decay**layers if bottom else 1.0
        return np.full((1,) * len(x.shape), value, np.float32)

    found = jax.tree_util.tree_map_with_path(share, params)
    if not any(x.any() for x in jax.tree.leaves(found)):
        raise ConfigError(f"optim.frozen={' '.join(config.frozen)} leaves nothing to train; name fewer parameters")
    return found


def _clip(most: float) -> optax.GradientTransformation:
    """The gradient times most/|gradient| where that is less than 1, as TensorFlow's clip_by_global_norm. One factor for
    all is multiplied within Adam's own loops; optax's quotient of each number is written first, and read again."""

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        norm = optax.tree.norm(grads)
        share = jnp.where(norm < most, 1.0, most / norm)
        return jax.tree.map(lambda g: (g * share).astype(g.dtype), grads), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)  # pyright: ignore[reportArgumentType]


def optimizer(config: OptimConfig) -> optax.GradientTransformation:
    """clip → Adam or Adagrad → + decay·p; times -lr where it is applied. A step is no update where it was skipped.

    Differs: the original clips each TPU core's own gradient before the cores' gradients are summed; here the whole
    batch's gradient is clipped, so that a step does not depend on the number of devices.
    """
    clip = _clip(config.clip) if config.clip else optax.identity()
    if config.name == "gpt1":
        betas, decay = (config.b1, config.b2, config.eps), (config.weight_decay, config.no_decay)
        return optax.chain(clip, _scale_by_gpt1_adam(*betas, *decay))
    if config.name == "adagrad":
        clip = optax.chain(optax.scale(config.gradient_scale), clip)
    adam = {
        "adagrad": lambda: optax.scale_by_rss(initial_accumulator_value=1.0, eps=0.0),
        "bert": lambda: _scale_by_bert_adam(config.b1, config.b2, config.eps),
        "adamw": lambda: optax.scale_by_adam(config.b1, config.b2, config.eps),
    }[config.name]()
    decay = optax.add_decayed_weights(config.weight_decay, lambda params: decayed(params, config.no_decay))
    return optax.chain(clip, adam, decay)
