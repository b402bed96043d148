"""LoRA (Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models): adapters on a frozen backbone.

    W' = W + alpha/rank · A·B        A: inputs × rank, B: rank × outputs, for each adapted kernel W (section 4.1)

Parameters are then {"backbone": …, "heads_<name>": …, "lora": …}. The kernel `backbone/layers/ffn/in/kernel` has its
adapter at `lora/layers/ffn/in/kernel/a` and `…/b`. Adapters and heads are trained; the backbone stays unchanged, to the
bit, and the optimizer holds no moments for it.

The kernels are merged (W') once a step, or once a microbatch, before the model runs: so every family, kernel, remat and
quantization works as without adapters. The price is an array W' and a gradient dW for each adapted kernel, which the
form x·W + (x·A)·B does not need; with queries and values alone these are a sixth of a layer. In time, A·B costs
D·rank·D for each kernel, little compared with the tokens·D·D of its product. In bfloat16 W' is rounded where the model
casts it, as is a kernel that is trained itself.

Differs: the paper draws A from a normal distribution; here it is uniform, as in its published code (loralib) and in
peft. The published code may drop inputs of A; W' has no such dropout.
"""

import functools
import math
import re
import zlib

import jax
import jax.numpy as jnp

from contexture.data.errors import did_you_mean
from contexture.models.families import build, example
from contexture.models.shapes import PARAMETER_DIMS, Params, by_path, count, dims_of, nested, path_of
from contexture.models.sharding import constrain
from contexture.train.errors import ConfigError
from contexture.train.families import FAMILIES
from contexture.train.objectives import batch_sizes
from contexture.train.settings.run import Run
from contexture.train.settings.sections import OptimConfig

ADAPTERS = "lora"


def check_adapters(run: Run) -> None:
    """Raises ConfigError for adapters on a random backbone, on unknown kernels, or of too high a rank."""
    config = run.optim
    if not config.lora_rank:
        return
    # Nothing will train the backbone, so it must have been trained before.
    if not run.init.run or run.init.random:
        what = "init.random" if run.init.random else "no init.run"
        raise ConfigError(
            f"optim.lora-rank={config.lora_rank} adapts a trained backbone, and {what} leaves it random; "
            "give --init.run RUN, or leave optim.lora-rank out"
        )
    # Shapes are enough to find kernels and ranks; nothing is computed.
    model, batch = build(run.model), example(run.text.sequences, batch_sizes(run, 1))
    key = jax.random.key(0)
    jax.eval_shape(lambda: add_adapters(model.init(key, batch)["params"], run, key))


def add_adapters(params: Params, run: Run, key: jax.Array) -> Params:
    """Returns the parameters with fresh adapters, as `run.optim` wants them: A uniform in ±1/√inputs, B zeros.

    A·B is zero at first, so the first step computes what the backbone alone does.

    Args:
        params: of the model; may be traced.
        run: gives the rank and the targets.
        key: from the run's seed; may be traced.

    Raises:
        ConfigError: when a target is no kernel, or the rank is above a kernel's smaller side.
    """
    config = run.optim
    if not config.lora_rank:
        return params
    kernels = by_path(params["backbone"])
    leaves: dict[str, jax.Array] = {}
    for path in _targets(run, list(kernels)):
        a_dims, shape = dims_of(f"{ADAPTERS}/{path}/a"), kernels[path].shape
        # A has the kernel's input dims and the rank: NDHK → a ND_, b N_HK. Dims may be several, hence the products.
        layered, split_at = _layered(a_dims), len(a_dims) - 1
        inputs, outputs = math.prod(shape[layered:split_at]), math.prod(shape[split_at:])
        if config.lora_rank > min(inputs, outputs):
            raise ConfigError(
                f"optim.lora-rank={config.lora_rank} is above the rank of {path}, {inputs}×{outputs}; give at most "
                f"{min(inputs, outputs)}, or other --optim.lora-targets"
            )
        # A key of the path's own: the draw does not depend on which other kernels have adapters.
        own_key = jax.random.fold_in(key, zlib.crc32(path.encode()))
        bound = 1.0 / math.sqrt(inputs)
        leaves[f"{path}/a"] = jax.random.uniform(
            own_key, (*shape[:split_at], config.lora_rank), minval=-bound, maxval=bound
        )
        leaves[f"{path}/b"] = jnp.zeros((*shape[:layered], config.lora_rank, *shape[split_at:]))
    # B is zero and A is not: with both zero neither would ever get a gradient.
    return {**params, ADAPTERS: nested(leaves)}


def _targets(run: Run, paths: list[str]) -> list[str]:
    """Returns the paths, below `backbone`, of the kernels that get adapters."""
    # A kernel can have adapters if the dims table has a row for them.
    kernels = [path for path in paths if any(re.fullmatch(row, f"{ADAPTERS}/{path}/a") for row, _ in PARAMETER_DIMS)]
    if not kernels:
        raise ConfigError(
            f"optim.lora-rank adapts kernels, and the family {run.family} has none; leave optim.lora-rank out"
        )
    # The paper adapts queries and values.
    words = run.optim.lora_targets or FAMILIES[run.family].lora_targets
    # A word is a part of a path (`query`, `ffn/in`); one that fits nothing would silently train less.
    for word in words:
        if word != "all" and not any(word in path for path in kernels):
            parts = dict.fromkeys(part for path in kernels for part in path.split("/"))
            raise ConfigError(
                f"optim.lora-targets={word} is in the path of no kernel that can have adapters"
                f"{did_you_mean(word, parts)}; give some of {', '.join(parts)}, or all"
            )
    return [path for path in kernels if any(word == "all" or word in path for word in words)]


def split(params: Params, config: OptimConfig) -> tuple[Params, Params]:
    """Returns (what is frozen whole, what is trained): (backbone, the rest) with adapters or a frozen backbone; else
    ({}, everything)."""
    # Nothing is frozen whole; parameters that are frozen in part have a multiplier of 0 instead (`lr_multipliers`).
    if ADAPTERS not in params and not config.freezes_backbone:
        return {}, params
    return {"backbone": params["backbone"]}, {name: part for name, part in params.items() if name != "backbone"}


def merged(params: Params, config: OptimConfig) -> Params:
    """Returns the model's own parameters: each adapted kernel becomes W + alpha/rank · A·B, and `lora` is gone.

    config: of the run that trained the adapters. Parameters without adapters are returned unchanged.
    """
    if ADAPTERS not in params:
        return params
    # Paths below `lora` and below `backbone` are the same, with /a and /b at the end.
    adapters = by_path(params[ADAPTERS])

    def merge(keys: tuple[object, ...], kernel: jax.Array) -> jax.Array:
        path = path_of(keys)
        # Kernels without an adapter, norms, embeddings.
        if f"{path}/a" not in adapters:
            return kernel
        a, b = adapters[f"{path}/a"], adapters[f"{path}/b"]
        return _add_product(kernel, a, b, scale=config.lora_scale, dims=dims_of(f"backbone/{path}"))

    backbone = jax.tree_util.tree_map_with_path(merge, params["backbone"])
    return {**{name: part for name, part in params.items() if name != ADAPTERS}, "backbone": backbone}


@functools.partial(jax.jit, static_argnames=("scale", "dims"))
def _add_product(kernel: jax.Array, a: jax.Array, b: jax.Array, *, scale: float, dims: str) -> jax.Array:
    """kernel + scale · a·b, layer by layer, sharded as the kernel is."""
    # The leading N axis, if there is one, is a batch dim of the product: every layer has its own A and B.
    layers = tuple(range(_layered(dims)))
    # The rank is A's last dim, and B's first after the layers. In full float32 on every device: it costs little.
    contracted = ((a.ndim - 1,), (len(layers),))
    product = jax.lax.dot_general(a, b, (contracted, (layers, layers)), precision=jax.lax.Precision.HIGHEST)
    return constrain(kernel + scale * product, dims)


def _layered(dims: str) -> int:
    """Returns how many leading dims count layers: 1 or 0."""
    return int(dims.startswith("N"))


def describe_parameters(params: Params, config: OptimConfig) -> str:
    """Returns the number of parameters, '110,000 parameters', and with a frozen backbone how many are trained."""
    # Heads are always trained: with adapters they and the adapters, with a frozen backbone they alone.
    frozen, trained = split(params, config)
    what = "adapters and heads" if ADAPTERS in params else "the heads"
    note = f", of which {count(trained):,} are trained, {what}" if frozen else ""
    return f"{count(params):,} parameters{note}"
