"""LSTM with a projection and clips (Sak et al. 2014), as ELMo's biLM has it (Peters et al. 2018; bilm-tf).

A step, from the word x and the state (cell c, projected h) before it:

    i, j, f, o = x·Kx + h·Kh + b
    c = clip(sigmoid(f + 1)·c + sigmoid(i)·tanh(j))
    h = clip((sigmoid(o)·tanh(c))·P)

The forget gate's 1 is added here and is in no parameter.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.layers.dropout import DropoutKey, dropout

Gates = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def recur(
    z_LBGU: jax.Array,
    first: tuple[jax.Array, jax.Array],
    kernel_JGU: jax.Array,
    projection_UJ: jax.Array,
    cell_clip: float,
    projection_clip: float,
) -> tuple[jax.Array, jax.Array]:
    """The steps of a layer: what its inputs give the gates, the cell BU and hidden BJ before the first step → cells
    LBU (float32), hidden LBJ.

    The gradient of the kernels is one product over all steps, behind the loop back through them; none goes to `first`,
    with which the past ends (truncated backpropagation), and none comes from the cells.
    """
    return _run(z_LBGU, first, kernel_JGU, projection_UJ, cell_clip, projection_clip)[1:]


def _gates(z_BGU: jax.Array) -> Gates:
    i, j, f, o = (z_BGU[:, n] for n in range(4))
    return jax.nn.sigmoid(i), jnp.tanh(j), jax.nn.sigmoid(f + 1.0), jax.nn.sigmoid(o)


def _clip(x: jax.Array, most: float) -> jax.Array:
    return jnp.clip(x, -most, most) if most else x


def _run(
    z_LBGU: jax.Array,
    first: tuple[jax.Array, jax.Array],
    kernel_JGU: jax.Array,
    projection_UJ: jax.Array,
    cell_clip: float,
    projection_clip: float,
) -> tuple[Gates, jax.Array, jax.Array]:
    dtype = projection_UJ.dtype
    J, G, U = kernel_JGU.shape
    kernel = kernel_JGU.reshape(J, G * U)

    def step(state: tuple[jax.Array, jax.Array], z_BGU: jax.Array) -> tuple[Any, Any]:
        cell_BU, hidden_BJ = state
        more = jnp.dot(hidden_BJ, kernel, preferred_element_type=jnp.float32)
        i, j, f, o = gates = _gates(z_BGU + more.reshape(z_BGU.shape))
        cell_BU = _clip(f * cell_BU + i * j, cell_clip)
        out_BU = (o * jnp.tanh(cell_BU)).astype(dtype)
        hidden_BJ = _clip(jnp.dot(out_BU, projection_UJ, preferred_element_type=jnp.float32), projection_clip)
        hidden_BJ = hidden_BJ.astype(dtype)
        return (cell_BU, hidden_BJ), (gates, cell_BU, hidden_BJ)

    first = (first[0].astype(jnp.float32), first[1].astype(dtype))
    return jax.lax.scan(step, first, z_LBGU)[1]


def _recur_forward(*given: Any) -> tuple[Any, Any]:
    gates, cells_LBU, hidden_LBJ = _run(*given)
    return (cells_LBU, hidden_LBJ), (gates, cells_LBU, hidden_LBJ, *given[1:4])


def _recur_backward(cell_clip: float, projection_clip: float, saved: Any, cotangents: Any) -> Any:
    gates, cells_LBU, hidden_LBJ, first, kernel_JGU, projection_UJ = saved
    dtype = projection_UJ.dtype
    J, G, U = kernel_JGU.shape
    kernel = kernel_JGU.reshape(J, G * U)
    before_LBU = jnp.concatenate([first[0][None].astype(jnp.float32), cells_LBU[:-1]])
    before_LBJ = jnp.concatenate([first[1][None].astype(dtype), hidden_LBJ[:-1]])

    def inside(x: jax.Array, most: float, dx: jax.Array) -> jax.Array:
        return jnp.where(jnp.abs(x) < jnp.asarray(most, x.dtype), dx, 0.0) if most else dx

    def step(state: tuple[jax.Array, jax.Array], saved: Any) -> tuple[Any, Any]:
        dcell_BU, dhidden_BJ = state
        (i, j, f, o), cell_BU, before_BU, hidden_BJ, dy_BJ = saved
        dprojected_BJ = inside(hidden_BJ, projection_clip, dhidden_BJ + dy_BJ.astype(jnp.float32)).astype(dtype)
        dout_BU = jnp.dot(dprojected_BJ, projection_UJ.T, preferred_element_type=jnp.float32)
        t = jnp.tanh(cell_BU)
        dcell_BU = inside(cell_BU, cell_clip, dcell_BU + dout_BU * o * (1.0 - t * t))
        dz_BGU = jnp.stack(
            [
                dcell_BU * j * i * (1.0 - i),
                dcell_BU * i * (1.0 - j * j),
                dcell_BU * before_BU * f * (1.0 - f),
                dout_BU * t * o * (1.0 - o),
            ],
            axis=1,
        ).astype(dtype)
        dhidden_BJ = jnp.dot(dz_BGU.reshape(-1, G * U), kernel.T, preferred_element_type=jnp.float32)
        return (dcell_BU * f, dhidden_BJ), (dz_BGU, dprojected_BJ)

    last = (jnp.zeros_like(first[0], jnp.float32), jnp.zeros_like(first[1], jnp.float32))
    steps = (gates, cells_LBU, before_LBU, hidden_LBJ, cotangents[1])
    dz_LBGU, dprojected_LBJ = jax.lax.scan(step, last, steps, reverse=True)[1]
    out_LBU = (gates[3] * jnp.tanh(cells_LBU)).astype(dtype)
    dkernel_JGU = jnp.einsum("LBJ,LBGU->JGU", before_LBJ, dz_LBGU)
    dprojection_UJ = jnp.einsum("LBU,LBJ->UJ", out_LBU, dprojected_LBJ)
    nothing = jax.tree.map(jnp.zeros_like, first)
    return dz_LBGU.astype(jnp.float32), nothing, dkernel_JGU, dprojection_UJ


recur.defvjp(_recur_forward, _recur_backward)


class Lstm(nn.Module):
    """N layers in one direction: x_BLJ → what each gives, N of BLJ.

    skip: the output of a layer but the first has its input added; its state has not. Dropout falls on each layer's
    input, with a mask of its own at each step, and what the skip adds is that input, dropped. Kernels hold what falls
    on the input and on the hidden state, [2, J, 4, U]; drawn uniform (Glorot and Bengio 2010), biases 0.

    carries: the states go on from the collection `carry` (cell BNU, hidden BNJ; zeros to begin with), which is left as
    they are at each line's place last_B, the end if None. No gradient goes back that way.
    """

    sizes: dict[str, int]
    cell_clip: float
    projection_clip: float
    skip: bool
    rate: float
    dtype: Any

    @nn.compact
    def __call__(
        self, x_BLJ: jax.Array, carries: bool, last_B: jax.Array | None, dropout_key: DropoutKey | None, site: int
    ) -> list[jax.Array]:
        N, J, G, U = (self.sizes[letter] for letter in "NJGU")
        glorot = functools.partial(nn.initializers.variance_scaling, 1.0, "fan_avg", "uniform", batch_axis=0)
        kernel_N_JGU = self.param("kernel", glorot(in_axis=(1, 2), out_axis=(3, 4)), (N, 2, J, G, U))
        bias_NGU = self.param("bias", nn.initializers.zeros, (N, G, U))
        projection_NUJ = self.param("projection", glorot(in_axis=1, out_axis=2), (N, U, J))
        cell_BNU, hidden_BNJ = jnp.zeros((x_BLJ.shape[0], N, U)), jnp.zeros((x_BLJ.shape[0], N, J), self.dtype)
        if carries:
            begun = {"cell": lambda x=cell_BNU: x, "hidden": lambda x=hidden_BNJ: x}
            carried = [self.variable("carry", name, made) for name, made in begun.items()]
            cell_BNU, hidden_BNJ = (x.value for x in carried)
        outputs, left = [], []
        for n in range(N):
            x_BLJ = dropout(x_BLJ, self.rate, dropout_key, site + n)
            kernel_JGU, after_JGU = (kernel_N_JGU[n, part].astype(self.dtype) for part in range(2))
            x_LBJ = jnp.moveaxis(x_BLJ.astype(self.dtype), 1, 0)
            z_LBGU = jnp.einsum("LBJ,JGU->LBGU", x_LBJ, kernel_JGU, preferred_element_type=jnp.float32)
            z_LBGU += bias_NGU[n][None, None]
            first, projection_UJ = (cell_BNU[:, n], hidden_BNJ[:, n]), projection_NUJ[n].astype(self.dtype)
            states: Any = recur(z_LBGU, first, after_JGU, projection_UJ, self.cell_clip, self.projection_clip)
            left.append([_at(x, last_B) for x in states])
            y_BLJ = jnp.moveaxis(states[1], 0, 1)
            x_BLJ = y_BLJ + x_BLJ.astype(self.dtype) if self.skip and n else y_BLJ
            outputs.append(x_BLJ)
        if carries and not self.is_initializing():
            for variable, of in zip(carried, zip(*left, strict=True), strict=True):
                variable.value = jax.lax.stop_gradient(jnp.stack(of, 1))
        return outputs


def _at(x_LBU: jax.Array, place_B: jax.Array | None) -> jax.Array:
    """Each line at its place; the last of all where none is given."""
    if place_B is None:
        return x_LBU[-1]
    return jnp.take_along_axis(x_LBU, place_B[None, :, None], axis=0)[0]
