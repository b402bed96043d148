"""Attention by the kernels, interpreted on a CPU, and by the reference: programs that are compiled once for each shape,
and the arrays and masks that they are run on."""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from contexture.models.config import GptConfig
from contexture.models.gpt import causal_biases
from contexture.models.layers.attention import flash, gpu_kernel, module, tpu_kernel
from contexture.models.layers.attention.mask import PADDED, AttentionMask
from contexture.models.layers.dropout import DropoutKey, WeightDropout, dropout_key

KERNELS: dict[str, ModuleType] = {"tpu": tpu_kernel, "gpu": gpu_kernel, "tpu_long": tpu_kernel}
"""The kernels by name; `tpu_long` has the backward pass of long texts."""
NAMES = ("y", "dq", "dk", "dv")
# Compiled quickly, also where the suite compiles as users do. And without excess precision: what a program rounds to
# bfloat16 XLA would else keep in float32 on a CPU, here and there.
QUICKLY: Any = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_allow_excess_precision": False,
}


class Tiled(NamedTuple):
    """A kernel with tiles of another size."""

    name: str
    queries: int
    keys: int

    @property
    def ORDER(self) -> str:
        return KERNELS[self.name].ORDER

    @property
    def NORM(self) -> str:
        return KERNELS[self.name].NORM

    def blocks(self, length: int, width: int, dtype: Any) -> tuple[int, int]:
        return self.queries, self.keys

    def padded_width(self, width: int) -> int:
        return KERNELS[self.name].padded_width(width)

    def forward(self, *args: Any) -> Any:
        return KERNELS[self.name].forward(*args)

    def backward(self, *args: Any) -> Any:
        with mock.patch.object(tpu_kernel, "DQ_BYTES", 0 if self.name == "tpu_long" else tpu_kernel.DQ_BYTES):
            return KERNELS[self.name].backward(*args)


class Case(NamedTuple):
    """What a program is compiled for. kind: padded, causal, banded, packed, or both of the last."""

    kind: str
    length: int
    width: int
    dtype: str
    rate: float
    rows: int = 2
    heads: int = 2

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows, self.length, self.heads, self.width


Arrays = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""q, k, v and the result's gradient, BLHK."""


def draw_arrays(shape: tuple[int, ...], dtype: str, seed: int = 0, offset: int = 0) -> Arrays:
    """Quarters: their products are exact, and so is what -10000 leaves of a logit where all keys are padding; else its
    rounding would decide. offset: what keys have in common, and values."""
    rng = np.random.default_rng(seed)
    q, k, v, dy = (rng.integers(-6, 7, shape) / 4 for _ in range(4))
    return tuple(jnp.asarray(x, dtype) for x in (q, k + offset, v + offset, dy))  # pyright: ignore[reportReturnType]


def draw_tokens(rng: np.random.Generator, rows: int, length: int) -> jax.Array:
    """Padding: one sequence of tokens alone, one of padding alone, others of any length, in any order."""
    ends = np.array([0, length, *rng.integers(1, length + 1, rows)])[:rows]
    return jnp.asarray(np.arange(length) < rng.permutation(ends)[:, None], jnp.int32)


def draw_documents(rng: np.random.Generator, rows: int, length: int) -> jax.Array:
    """Up to four documents, followed by padding in some sequences."""
    packs = np.sort(rng.integers(1, 5, (rows, length)))
    return jnp.asarray(packs * (np.arange(length) < rng.integers(length // 2, 2 * length, (rows, 1))), jnp.int32)


def draw_mask(case: Case, seed: int) -> AttentionMask:
    rng = np.random.default_rng(seed)
    if case.kind == "padded":
        return AttentionMask(tokens_BM=draw_tokens(rng, case.rows, case.length))
    packs_BL = draw_documents(rng, case.rows, case.length) if "packed" in case.kind else None
    window = jnp.int32(rng.integers(1, case.length + 1)) if "banded" in case.kind else None
    return AttentionMask(packs_BL=packs_BL, causal=True, window=window)


def bias_of(mask: AttentionMask, length: int) -> jax.Array:
    """The rule as an array, by the models' own formulas."""
    if not mask.causal:
        assert mask.tokens_BM is not None
        return (1.0 - mask.tokens_BM.astype(jnp.float32))[:, None, None, :] * PADDED
    packs, window = mask.packs_BL, 0 if mask.window is None else int(mask.window)
    visible_BLM = jnp.ones((1, 1, 1), bool) if packs is None else packs[:, :, None] == packs[:, None, :]
    column_BL = jnp.arange(length)[None]
    return causal_biases(GptConfig(local_window=window), column_BL, column_BL, visible_BLM)[-1]


def draw_key(rows: int, seed: int) -> DropoutKey:
    return dropout_key(3, jnp.int32(seed), jnp.arange(rows) + 7)


def gradients(attend: Callable[..., jax.Array], arrays: Arrays) -> tuple[jax.Array, ...]:
    """The result and the gradients of q, k and v."""
    *qkv, dy = arrays
    y, pull = jax.vjp(attend, *qkv)
    return y, *pull(dy)


@cache
def kernel_program(kernel: Tiled, case: Case) -> Callable[[Arrays, AttentionMask, DropoutKey], Any]:
    module: Any = kernel

    def run(arrays: Arrays, mask: AttentionMask, key: DropoutKey) -> Any:
        made: Any = dict(kernel=module, interpret=True, dropped=WeightDropout(case.rate, key, 4))
        return gradients(lambda q, k, v: flash.attend(q, k, v, mask, **made), arrays)

    return jax.jit(run, compiler_options=QUICKLY)


@cache
def reference_program(case: Case) -> Callable[[Arrays, jax.Array, DropoutKey], Any]:
    def run(arrays: Arrays, bias_BHLM: jax.Array, key: DropoutKey) -> Any:
        dropped = WeightDropout(case.rate, key, 4)
        return gradients(lambda q, k, v: module.reference_attend(q, k, v, bias_BHLM, dropped), arrays)

    return jax.jit(run, compiler_options=QUICKLY)


def by_kernel(kernel: Tiled, case: Case, arrays: Arrays, mask: AttentionMask, key: DropoutKey) -> list[np.ndarray]:
    return [np.asarray(x, np.float32) for x in kernel_program(kernel, case)(arrays, mask, key)]


def by_reference(case: Case, arrays: Arrays, mask: AttentionMask, key: DropoutKey) -> list[np.ndarray]:
    bias_BHLM = bias_of(mask, case.length)
    return [np.asarray(x, np.float32) for x in reference_program(case)(arrays, bias_BHLM, key)]
