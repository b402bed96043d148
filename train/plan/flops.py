"""Counts the floating-point operations of matrix products, in a compiled program and in a traced one."""

import math
import re
from typing import Any, TypeAlias

from contexture.train.plan.hlo import Computation, Instruction

Flops: TypeAlias = dict[str, float]
"""Multiplications and additions by the type of their factors: {"bf16": 2e12, "f32": 1e9}."""
PRECISIONS = ("highest", "high")
"""Of float32 products, which a TPU multiplies in six and three passes over bfloat16 parts."""
_NAMES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64", "int8": "s8",
          "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2"}  # fmt: skip


def add(total: Flops, more: Flops, times: float = 1.0) -> None:
    """Adds operations to a total."""
    # By type, since a chip has a peak for each.
    for dtype, count in more.items():
        total[dtype] = total.get(dtype, 0.0) + times * count


def product_flops(instruction: Instruction, computation: Computation) -> Flops:
    """Returns the operations of one `dot` or `convolution`, as one device computes it."""
    if len(instruction.operands) < 2:
        return {}
    # Operands that the computation does not define (of another one, or unreadable) are not counted.
    left, right = (computation[name].result[:1] if name in computation else () for name in instruction.operands[:2])
    if not left or not right:
        return {}
    if instruction.opcode == "dot":
        # A product has one multiplication for each output and each contracted place: size(out) · K.
        dims = instruction.braces("lhs_contracting_dims")
        contracted = math.prod(left[0].shape[int(dim)] for dim in dims.split(",") if dim)
        count = instruction.result[0].size * contracted
    else:
        count = _convolution(instruction, left[0].shape, right[0].shape)
    dtype = left[0].dtype
    # The precision of the first factor; both have the same where jax sets it. Each multiplication comes with an
    # addition.
    precision = instruction.braces("operand_precision").split(",")[0]
    return {f"{dtype}:{precision}" if precision in PRECISIONS else dtype: 2.0 * count}


def _convolution(instruction: Instruction, left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Returns the multiplications of a convolution, without those by padding.

    XLA for TPUs writes plain products as convolutions too.
    """
    # dim_labels=b0f_0io->b0f: which dim of input, kernel and output is batch (b), feature (f, i, o) or spatial (0, 1,
    # …).
    labels = re.search(r"dim_labels=([\w?]+)_([\w?]+)->([\w?]+)", instruction.text)
    if not labels:
        return 0
    left_labels, right_labels, out_labels = labels.groups()
    out = instruction.result[0].shape
    window = dict(word.split("=") for word in instruction.braces("window").split())
    spatial = sorted(letter for letter in right_labels if letter.isdigit())

    def values(name: str, default: str) -> list[str]:
        return window[name].split("x") if name in window else [default] * len(spatial)

    # Spatial dims are independent, so their counts multiply.
    pairs = 1  # (place in the output, place in the window) that meet a place of the input, over all spatial dims
    defaults = {"size": "1", "stride": "1", "pad": "0_0", "lhs_dilate": "1", "rhs_dilate": "1"}
    of_each = [values(name, default) for name, default in defaults.items()]
    for letter, size, stride, pad, dilate, window_dilate in zip(spatial, *of_each, strict=True):
        places = _Window(int(stride), int(pad.split("_")[0]), int(dilate), int(window_dilate))
        length = left[left_labels.index(letter)]
        pairs *= places.pairs(length, int(size), out[out_labels.index(letter)])
    batch, features = out[out_labels.index("b")], out[out_labels.index("f")]
    return batch * features * right[right_labels.index("i")] * pairs


class _Window:
    """A convolution's window over one spatial dim: its stride, its padding before, and both dilations."""

    def __init__(self, stride: int, low: int, dilate: int, window_dilate: int) -> None:
        self.stride, self.low, self.dilate, self.window_dilate = stride, low, dilate, window_dilate

    def pairs(self, length: int, size: int, out: int) -> int:
        # Output o and window place w meet input o·stride + w·window_dilate - low, if that is inside and no hole of the
        # dilation.
        last = (length - 1) * self.dilate
        count = 0
        for place in range(size):
            start = place * self.window_dilate - self.low
            # Without holes the outputs that stay inside are a range, which need not be walked.
            if self.dilate == 1:
                first, final = max(0, -(start // self.stride)), min(out - 1, (last - start) // self.stride)
                count += max(0, final - first + 1)
            else:
                reached = (at * self.stride + start for at in range(out))
                count += sum(0 <= at <= last and at % self.dilate == 0 for at in reached)
        return count


def traced_flops(jaxpr: Any, times: float = 1.0, devices: int = 1) -> Flops:
    """Returns the operations of the products in a traced program, over all devices, with loops counted as often as they
    run. A Pallas kernel counts by its cost estimate, which is for one device.
    """
    total: Flops = {}
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (left_dims, _), _ = params["dimension_numbers"]
            left = equation.invars[0].aval
            count = 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left.shape[dim] for dim in left_dims)
            dtype = str(left.dtype.name)
            add(total, {_NAMES.get(dtype, dtype): times * count})
        elif name == "pallas_call":
            if estimate := params.get("cost_estimate"):
                add(total, {"kernel": times * estimate.flops * devices})
        elif name == "cond":
            # One branch runs: the largest, so that the figure is never too small.
            branches = [traced_flops(branch.jaxpr, times, devices) for branch in params["branches"]]
            add(total, max(branches, key=lambda flops: sum(flops.values())))
        else:
            # Any other primitive with a program inside (jit, remat, custom_vjp, scan, shard_map): look into it.
            inner = times * params["length"] if name == "scan" else times
            sharded = params["mesh"].size if name == "shard_map" else 1
            for value in params.values():
                for part in value if isinstance(value, tuple | list) else (value,):
                    body = getattr(part, "jaxpr", part)
                    if hasattr(body, "eqns"):
                        # The body of a shard_map is what one device does.
                        add(total, traced_flops(body, inner, devices * sharded))
    return total
