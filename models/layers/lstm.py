"""LSTM with a projection and clips (Sak et al. 2014), as in ELMo's biLM (Peters et al. 2018; bilm-tf).

One step, from the input x and the previous state (cell c, projected hidden state h):

    i, j, f, o = x·Kx + h·Kh + b
    c = clip(sigmoid(f + 1)·c + sigmoid(i)·tanh(j))
    h = clip((sigmoid(o)·tanh(c))·P)

The forget gate's 1 is added in the code and is part of no parameter.
"""

import functools
from typing import TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from contexture.models.layers.dropout import DropoutKey, dropout
from contexture.models.layers.matmul import custom_gradient
from contexture.models.sharding import constrain

Gates: TypeAlias = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""sigmoid(i), tanh(j), sigmoid(f + 1), sigmoid(o), each BU or LBU."""
State: TypeAlias = tuple[jax.Array, jax.Array]
"""(cell BU, hidden BJ)."""
Residuals: TypeAlias = tuple[Gates, jax.Array, jax.Array, State, jax.Array, jax.Array, jax.Array | None]


@custom_gradient(nondiff_argnums=(4, 5))
def recur(
    z_LBGU: jax.Array,
    initial: State,
    kernel_JGU: jax.Array,
    projection_UJ: jax.Array,
    cell_clip: float,
    projection_clip: float,
    keeps_LB1: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Runs one layer over L steps: z = x·Kx + b for each step, the initial state → cells LBU (float32), hidden LBJ.

    keeps_LB1 (bool) is False where a sentence begins within a lane: that step has zeros as its previous state. None: no
    step has.

    The gradient has a backward pass of its own, because JAX's would add to the kernels' gradients at each step. Here
    each is one product over all steps, formed behind the loop.

    No gradient reaches `initial`: backpropagation is truncated there. None comes from the cells.
    """
    return _scan_steps(z_LBGU, initial, kernel_JGU, projection_UJ, cell_clip, projection_clip, keeps_LB1)[1:]


def _gates(z_BGU: jax.Array) -> Gates:
    # TensorFlow's order of the four, which published kernels are stored in.
    i, j, f, o = (z_BGU[:, n] for n in range(4))
    # A forget gate that starts near open lets gradients pass through many steps from the first one on (Jozefowicz et
    # al. 2015; TensorFlow's forget_bias).
    return jax.nn.sigmoid(i), jnp.tanh(j), jax.nn.sigmoid(f + 1.0), jax.nn.sigmoid(o)


def _clip(x: jax.Array, limit: float) -> jax.Array:
    return jnp.clip(x, -limit, limit) if limit else x


def _kept(x: jax.Array, keeps_B1: jax.Array | None) -> jax.Array:
    """Returns x, and 0 where a sentence begins: of the state that a step reads, and the gradient that it hands back."""
    # A choice and no product: what another sentence has made infinite or no number stays there.
    return x if keeps_B1 is None else jnp.where(keeps_B1, x, 0)


def _previous(initial: jax.Array, x_LBU: jax.Array, keeps_LB1: jax.Array | None) -> jax.Array:
    """Returns what each step has read as its previous state: the initial one, then all but the last."""
    return _kept(jnp.concatenate([initial[None].astype(x_LBU.dtype), x_LBU[:-1]]), keeps_LB1)


def _scan_steps(
    z_LBGU: jax.Array,
    initial: State,
    kernel_JGU: jax.Array,
    projection_UJ: jax.Array,
    cell_clip: float,
    projection_clip: float,
    keeps_LB1: jax.Array | None = None,
) -> tuple[Gates, jax.Array, jax.Array]:
    dtype = projection_UJ.dtype
    J, G, U = kernel_JGU.shape
    # The four gates side by side: one product a step instead of four.
    kernel = kernel_JGU.reshape(J, G * U)

    def step(
        state: State, inputs: tuple[jax.Array, jax.Array | None]
    ) -> tuple[State, tuple[Gates, jax.Array, jax.Array]]:
        z_BGU, keeps_B1 = inputs
        cell_BU, hidden_BJ = (_kept(x, keeps_B1) for x in state)
        recurrent = jnp.dot(hidden_BJ, kernel, preferred_element_type=jnp.float32)
        i, j, f, o = gates = _gates(z_BGU + recurrent.reshape(z_BGU.shape))
        # The cell is a sum over all steps: it stays in float32, since bfloat16 would lose the small terms. The clips
        # keep it from growing without bound over a text that never ends.
        cell_BU = _clip(f * cell_BU + i * j, cell_clip)
        out_BU = (o * jnp.tanh(cell_BU)).astype(dtype)
        hidden_BJ = _clip(jnp.dot(out_BU, projection_UJ, preferred_element_type=jnp.float32), projection_clip)
        hidden_BJ = hidden_BJ.astype(dtype)
        return (cell_BU, hidden_BJ), (gates, cell_BU, hidden_BJ)

    initial = (initial[0].astype(jnp.float32), initial[1].astype(dtype))
    return jax.lax.scan(step, initial, (z_LBGU, keeps_LB1))[1]


def _recur_forward(
    z_LBGU: jax.Array,
    initial: State,
    kernel_JGU: jax.Array,
    projection_UJ: jax.Array,
    cell_clip: float,
    projection_clip: float,
    keeps_LB1: jax.Array | None = None,
) -> tuple[tuple[jax.Array, jax.Array], Residuals]:
    given = initial, kernel_JGU, projection_UJ
    gates, cells_LBU, hidden_LBJ = _scan_steps(z_LBGU, *given, cell_clip, projection_clip, keeps_LB1)
    return (cells_LBU, hidden_LBJ), (gates, cells_LBU, hidden_LBJ, *given, keeps_LB1)


def _recur_backward(
    cell_clip: float, projection_clip: float, saved: Residuals, cotangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, State, jax.Array, jax.Array, None]:
    gates, cells_LBU, hidden_LBJ, initial, kernel_JGU, projection_UJ, keeps_LB1 = saved
    dtype = projection_UJ.dtype
    J, G, U = kernel_JGU.shape
    kernel = kernel_JGU.reshape(J, G * U)
    # Behind a border a step has read zeros, whatever the step before has left.
    previous_LBU, previous_LBJ = (
        _previous(x, x_LBU, keeps_LB1) for x, x_LBU in zip(initial, (cells_LBU, hidden_LBJ), strict=True)
    )

    def through_clip(x: jax.Array, limit: float, dx: jax.Array) -> jax.Array:
        # A clipped value does not depend on what was clipped. x is the result: at the limit means clipped.
        return jnp.where(jnp.abs(x) < jnp.asarray(limit, x.dtype), dx, 0.0) if limit else dx

    def step(
        state: State, saved: tuple[Gates, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None]
    ) -> tuple[State, tuple[jax.Array, jax.Array]]:
        # state: the gradients that reach this step's cell and hidden state from the steps after it.
        dcell_BU, dhidden_BJ = state
        (i, j, f, o), cell_BU, previous_BU, hidden_BJ, dy_BJ, keeps_B1 = saved
        # Hidden state ← projection ← output gate · tanh(cell) ← cell, each from its own result.
        dprojected_BJ = through_clip(hidden_BJ, projection_clip, dhidden_BJ + dy_BJ.astype(jnp.float32)).astype(dtype)
        dout_BU = jnp.dot(dprojected_BJ, projection_UJ.T, preferred_element_type=jnp.float32)
        t = jnp.tanh(cell_BU)
        dcell_BU = through_clip(cell_BU, cell_clip, dcell_BU + dout_BU * o * (1.0 - t * t))
        # The gates' derivatives from their values: s(1 - s) for a sigmoid s, 1 - t² for a tanh t.
        dz_BGU = jnp.stack(
            [
                dcell_BU * j * i * (1.0 - i),
                dcell_BU * i * (1.0 - j * j),
                dcell_BU * previous_BU * f * (1.0 - f),
                dout_BU * t * o * (1.0 - o),
            ],
            axis=1,
        ).astype(dtype)
        dhidden_BJ = jnp.dot(dz_BGU.reshape(-1, G * U), kernel.T, preferred_element_type=jnp.float32)
        return (_kept(dcell_BU * f, keeps_B1), _kept(dhidden_BJ, keeps_B1)), (dz_BGU, dprojected_BJ)

    # Nothing comes after the last step. The loop runs backward over what the forward pass kept.
    final = (jnp.zeros_like(initial[0], jnp.float32), jnp.zeros_like(initial[1], jnp.float32))
    steps = (gates, cells_LBU, previous_LBU, hidden_LBJ, cotangents[1], keeps_LB1)
    dz_LBGU, dprojected_LBJ = jax.lax.scan(step, final, steps, reverse=True)[1]
    # One product over all L·B rows each, with the steps' outer products summed inside it, in float32.
    out_LBU = (gates[3] * jnp.tanh(cells_LBU)).astype(dtype)
    sum_in_float32 = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    dkernel_JGU = sum_in_float32("LBJ,LBGU->JGU", previous_LBJ, dz_LBGU).astype(dtype)
    dprojection_UJ = sum_in_float32("LBU,LBJ->UJ", out_LBU, dprojected_LBJ).astype(dtype)
    dinitial = (jnp.zeros_like(initial[0]), jnp.zeros_like(initial[1]))
    return dz_LBGU.astype(jnp.float32), dinitial, dkernel_JGU, dprojection_UJ, None


recur.defvjp(_recur_forward, _recur_backward)


@custom_gradient()
def _input_product(x_LBJ: jax.Array, kernel_JGU: jax.Array) -> jax.Array:
    """x · kernel → LBGU in float32. The backward pass multiplies in the factors' dtype; JAX's own would convert both
    factors to the result's."""
    return jnp.einsum("LBJ,JGU->LBGU", x_LBJ, kernel_JGU, preferred_element_type=jnp.float32)


def _input_product_backward(saved: tuple[jax.Array, jax.Array], dz_LBGU: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_LBJ, kernel_JGU = saved
    dz_LBGU = dz_LBGU.astype(x_LBJ.dtype)
    return jnp.einsum("LBGU,JGU->LBJ", dz_LBGU, kernel_JGU), jnp.einsum("LBJ,LBGU->JGU", x_LBJ, dz_LBGU)


_input_product.defvjp(lambda x, kernel: (_input_product(x, kernel), (x, kernel)), _input_product_backward)


class Lstm(nn.Module):
    """N LSTM layers in one direction: x_BLJ → the outputs of each layer, N of BLJ.

    skip: each layer but the first adds its input to its output; its state stays without it. Dropout falls on each
    layer's input, with a new mask at each step, and the skip adds that input after dropout.

    Kernels hold the input's part and the hidden state's part, [2, J, 4, U], initialised uniformly (Glorot and Bengio
    2010); biases start at 0.

    carries: the initial states come from the collection `carry` (cell BNU, hidden BNJ; zeros at first). The collection
    then receives each sequence's state at its last position last_B (None: the end). No gradient crosses that border.

    keeps_BL: 0 where a sentence begins within a lane of several, and the state starts again from zeros (`recur`).
    """

    sizes: dict[str, int]
    cell_clip: float
    projection_clip: float
    skip: bool
    rate: float
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self,
        x_BLJ: jax.Array,
        carries: bool,
        last_B: jax.Array | None,
        dropout_key: DropoutKey | None,
        site: int,
        keeps_BL: jax.Array | None = None,
    ) -> list[jax.Array]:
        N, J, G, U = (self.sizes[letter] for letter in "NJGU")
        # Fan-in 2J and fan-out 4U, for each layer: TensorFlow's LSTMCell has the input's and the hidden state's part in
        # one kernel, and Glorot's range is computed for the whole kernel.
        glorot = functools.partial(nn.initializers.variance_scaling, 1.0, "fan_avg", "uniform", batch_axis=0)
        kernel_N_JGU = self.param("kernel", glorot(in_axis=(1, 2), out_axis=(3, 4)), (N, 2, J, G, U))
        bias_NGU = self.param("bias", nn.initializers.zeros, (N, G, U))
        projection_NUJ = self.param("projection", glorot(in_axis=1, out_axis=2), (N, U, J))
        # Gathered once, here: inside the loop they would be gathered at each step.
        kernel_N_JGU, projection_NUJ = constrain(kernel_N_JGU, "N__GU"), constrain(projection_NUJ, "NU_")
        cell_BNU, hidden_BNJ = jnp.zeros((x_BLJ.shape[0], N, U)), jnp.zeros((x_BLJ.shape[0], N, J), self.dtype)
        # Without a carry every sequence starts from zeros.
        carry: list[nn.Variable] = []
        if carries:
            zeros = {"cell": cell_BNU, "hidden": hidden_BNJ}
            carry = [self.variable("carry", name, lambda x=x: x) for name, x in zeros.items()]
            cell_BNU, hidden_BNJ = (variable.value for variable in carry)
        keeps_LB1 = None if keeps_BL is None else keeps_BL.T[:, :, None]
        outputs, final_states = [], []
        # A Python loop over layers, not a scan: each layer's input is needed whole before its own loop over steps.
        for n in range(N):
            x_BLJ = dropout(x_BLJ, self.rate, dropout_key, site + n)
            input_JGU, recurrent_JGU = (kernel_N_JGU[n, part].astype(self.dtype) for part in range(2))
            x_LBJ = jnp.moveaxis(x_BLJ.astype(self.dtype), 1, 0)
            # The input's part needs no state: it is one product over all steps, before the loop, and the loop keeps
            # only the recurrent one.
            z_LBGU = _input_product(x_LBJ, input_JGU)
            z_LBGU = constrain(z_LBGU + bias_NGU[n][None, None], "LBGU")
            initial, projection_UJ = (cell_BNU[:, n], hidden_BNJ[:, n]), projection_NUJ[n].astype(self.dtype)
            clips = self.cell_clip, self.projection_clip
            cells_LBU, hidden_LBJ = recur(z_LBGU, initial, recurrent_JGU, projection_UJ, *clips, keeps_LB1)
            hidden_LBJ = constrain(hidden_LBJ, "LBJ")
            # For who asks: apply(…, mutable=["gates"]) gets the mean of each gate at each step.
            if self.is_mutable_collection("gates") and not self.is_initializing():
                previous_LBJ = _previous(initial[1], hidden_LBJ, keeps_LB1)
                self.sow("gates", f"layer_{n}", _gate_means(z_LBGU, previous_LBJ, recurrent_JGU))
            # The skip is no part of the state: only the next layer reads it.
            final_states.append([_state_at(x, last_B) for x in (cells_LBU, hidden_LBJ)])
            y_BLJ = jnp.moveaxis(hidden_LBJ, 0, 1)
            x_BLJ = y_BLJ + x_BLJ.astype(self.dtype) if self.skip and n else y_BLJ
            outputs.append(x_BLJ)
        # Initialisation runs on a batch of ones, whose states no text should start from.
        if carries and not self.is_initializing():
            for variable, states in zip(carry, zip(*final_states, strict=True), strict=True):
                variable.value = jax.lax.stop_gradient(jnp.stack(states, 1))
        return outputs


def _gate_means(z_LBGU: jax.Array, previous_LBJ: jax.Array, kernel_JGU: jax.Array) -> jax.Array:
    """Returns the mean over the cells of the input, the forget and the output gate at each step, [L, B, 3]."""
    z_LBGU += jnp.einsum("LBJ,JGU->LBGU", previous_LBJ, kernel_JGU, preferred_element_type=jnp.float32)
    i, _, f, o = _gates(z_LBGU.reshape(-1, *z_LBGU.shape[2:]))
    return jnp.stack([i.mean(-1), f.mean(-1), o.mean(-1)], -1).reshape(*z_LBGU.shape[:2], 3)


def _state_at(x_LBU: jax.Array, position_B: jax.Array | None) -> jax.Array:
    """Returns each sequence's state at its position; None: at the last one."""
    if position_B is None:
        return x_LBU[-1]
    return jnp.take_along_axis(x_LBU, position_B[None, :, None], axis=0)[0]
