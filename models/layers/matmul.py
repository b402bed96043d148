"""Products of activations and kernels, with gradients of our own: in the model's dtype, and quantized to 8 bits."""

from collections.abc import Callable
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from contexture.models.config import Quantization

Result = TypeVar("Result")
PRODUCT = "quantized_product"
"""What rematerialisation keeps of a quantized product, by name: its result, of the activations' dtype."""


def custom_gradient(
    nondiff_argnums: tuple[int, ...] = (),
) -> Callable[[Callable[..., Result]], "jax.custom_vjp[Result]"]:
    """Returns jax.custom_vjp as a decorator that takes nondiff_argnums and keeps the type of the function's result."""

    def decorate(function: Callable[..., Result]) -> "jax.custom_vjp[Result]":
        return cast("jax.custom_vjp[Result]", jax.custom_vjp(function, nondiff_argnums=nondiff_argnums))

    return decorate


@custom_gradient(nondiff_argnums=(2,))
def matmul(x_TD: jax.Array, kernel_DF: jax.Array, out_dtype: DTypeLike | None = None) -> jax.Array:
    """x · kernel, accumulated and returned in out_dtype (None: the factors' dtype); gradients have the factors' dtype.

    The forward pass is jnp.matmul's. The gradient is our own for its speed on CPUs: there the kernel's gradient is
    formed with the narrower of its two factors on the left, because XLA copies that factor into another order.
    """
    return jnp.matmul(x_TD, kernel_DF, preferred_element_type=out_dtype)


def _matmul_forward(
    x_TD: jax.Array, kernel_DF: jax.Array, out_dtype: DTypeLike | None
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return jnp.matmul(x_TD, kernel_DF, preferred_element_type=out_dtype), (x_TD, kernel_DF)


def _matmul_backward(
    out_dtype: DTypeLike | None, saved: tuple[jax.Array, jax.Array], dy_TF: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x_TD, kernel_DF = saved
    # A head's logits arrive in float32: back to the factors' dtype, so that both products below run in bfloat16.
    dy_TF = dy_TF.astype(x_TD.dtype)

    def transposed(x_TD: jax.Array, dy_TF: jax.Array) -> jax.Array:
        # (dyᵀ · x)ᵀ = xᵀ · dy. Without the barrier XLA would simplify it back to the right-hand side.
        return jax.lax.optimization_barrier(dy_TF.T @ x_TD).T

    def direct(x_TD: jax.Array, dy_TF: jax.Array) -> jax.Array:
        return x_TD.T @ dy_TF

    on_cpu = transposed if x_TD.shape[1] > dy_TF.shape[1] else direct
    return dy_TF @ kernel_DF.T, jax.lax.platform_dependent(x_TD, dy_TF, cpu=on_cpu, default=direct)


matmul.defvjp(_matmul_forward, _matmul_backward)


def quantized_matmul(x_TD: jax.Array, kernel_DF: jax.Array, quantization: Quantization) -> jax.Array:
    """x · kernel in x's dtype, with factors of 8 bits.

    Each row of x and each column of the kernel has a scale, by which its largest number becomes the largest of 8 bits
    (dynamic quantization): a token's result depends on no other token. Gradients are scaled likewise. qwix makes no
    scale below 1e-19: a row whose largest number is below 1.4e-17 (int8) or 6.2e-15 (float8_e5m2) becomes zeros.

    int8: the product and the gradient of x have factors of 255 equal steps, and are summed in int32. The kernel's
        gradient stays in x's dtype: its sum is over tokens, whose gradients differ too much in size for equal steps.
    fp8: all three products, of float8_e4m3fn for values and float8_e5m2, with the larger range, for gradients
        (Micikevicius et al. 2022, "FP8 formats for deep learning", section 3).
    """
    # An int32 sum takes twice the memory of its bfloat16 result, which is what remat keeps, by this name.
    return checkpoint_name(_quantized_matmul(x_TD, kernel_DF, quantization == "fp8"), PRODUCT)


@custom_gradient(nondiff_argnums=(2,))
def _quantized_matmul(x_TD: jax.Array, kernel_DF: jax.Array, fp8: bool) -> jax.Array:
    return _product(x_TD, kernel_DF, jnp.float8_e4m3fn if fp8 else jnp.int8)


def _quantized_forward(
    x_TD: jax.Array, kernel_DF: jax.Array, fp8: bool
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _quantized_matmul(x_TD, kernel_DF, fp8), (x_TD, kernel_DF)


def _quantized_backward(fp8: bool, saved: tuple[jax.Array, jax.Array], dy_TF: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_TD, kernel_DF = saved
    if not fp8:
        # int8: the kernel's gradient stays unquantized (`quantized_matmul`).
        return _product(dy_TF, kernel_DF.T, jnp.int8), x_TD.T @ dy_TF
    dx_TD = _product(dy_TF, kernel_DF.T, jnp.float8_e5m2, jnp.float8_e4m3fn)
    return dx_TD, _product(x_TD.T, dy_TF, jnp.float8_e4m3fn, jnp.float8_e5m2)


_quantized_matmul.defvjp(_quantized_forward, _quantized_backward)


def _product(a_XY: jax.Array, b_YZ: jax.Array, kind: DTypeLike, b_kind: DTypeLike | None = None) -> jax.Array:
    """a · b in a's dtype: of a's rows rounded to `kind` and b's columns rounded to b_kind (None: kind)."""
    # Imported where it is used: it takes as long to import as flax, and few runs quantize.
    import qwix

    def quantize(x: jax.Array, kind: DTypeLike, axis: int) -> qwix.QArray:
        # The largest number becomes 127. qwix's own 127.5 is as near to one integer as to the next, so that it would
        # depend on the order of sums which of them it is.
        largest = f"absmax,{127.5 / 127}" if kind == jnp.int8 else "absmax"
        # Scales in float32: one of bfloat16 would add its own rounding to each row.
        return qwix.quantize(x.astype(jnp.float32), kind, channelwise_axes=(axis,), calibration_method=largest)

    a, b = quantize(a_XY, kind, 0), quantize(b_YZ, b_kind or kind, 1)
    # 8-bit factors have one precision, whatever `jax_default_matmul_precision` says of float32.
    # Sums of int8 are written in int32; sums of float8 in a's dtype, which takes a GPU's memory half as long.
    y_XZ = qwix.dot_general(
        a, b, (((1,), (0,)), ((), ())), precision=jax.lax.Precision.DEFAULT, preferred_element_type=a_XY.dtype
    )
    return y_XZ.astype(a_XY.dtype)
