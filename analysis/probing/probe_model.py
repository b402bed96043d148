"""The probe: labels of a span, or of a pair, from the frozen vectors of the words in it (Tenney et al. 2019a, section
3.1, figure 1; 2019b, section 3).

layers → scalar mix → projection → self-attentive pooling of each span → MLP → a sigmoid for each label

Letters as in `models.shapes`, and of a probe: S spans of a target (1 or 2), W units of a span, X projected features,
Y hidden units. Pure functions of parameters, so that several probes are trained together by `jax.vmap`.
"""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

ProbeParams: TypeAlias = dict[str, Any]

PROJECTED, HIDDEN = 256, 512
_EPS = 1e-5


def init_probe(key: jax.Array, layers: int, width: int, spans: int, labels: int) -> ProbeParams:
    """Returns the initial parameters of a probe, whose mix gives all layers the same weight.

    Args:
        key: of the random initialisation.
        layers: the layers of the features, N.
        width: the width of a feature vector, D.
        spans: spans of a target, S.
        labels: how many labels, C.
    """
    project, attend, hidden, out = jax.random.split(key, 4)
    lecun = jax.nn.initializers.lecun_normal
    return {
        "mix": {"weights_N": jnp.zeros(layers), "gamma": jnp.ones(())},
        # The two spans of a pair have separate parameters: they play different roles, as a head and its dependent.
        "project": {
            "kernel_SDX": lecun(batch_axis=0)(project, (spans, width, PROJECTED)),
            "bias_SX": jnp.zeros((spans, PROJECTED)),
        },
        "attend": {"kernel_SX": lecun(in_axis=-1, out_axis=0)(attend, (spans, PROJECTED))},
        "hidden": {
            "kernel_SXY": lecun(in_axis=(0, 1))(hidden, (spans, PROJECTED, HIDDEN)),
            "bias_Y": jnp.zeros(HIDDEN),
            "scale_Y": jnp.ones(HIDDEN),
            "shift_Y": jnp.zeros(HIDDEN),
        },
        "out": {"kernel_YC": lecun()(out, (HIDDEN, labels)), "bias_C": jnp.zeros(labels)},
    }


def mix_weights(weights_N: jax.Array, layers_N: jax.Array) -> jax.Array:
    """softmax over the layers that a probe reads (layers_N, bool), 0 for the others: f32 N."""
    return jax.nn.softmax(jnp.where(layers_N, weights_N, -jnp.inf))


def mix_layers(mix: ProbeParams, layers_N: jax.Array, units_BSWND: jax.Array) -> jax.Array:
    """gamma · Σ_n softmax(weights)_n · layer_n: f32 BSWND → BSWD (2019b, equation 1)."""
    return mix["gamma"] * jnp.einsum("N,BSWND->BSWD", mix_weights(mix["weights_N"], layers_N), units_BSWND)


def pool_spans(kernel_SX: jax.Array, units_BSWX: jax.Array, inside_BSW: jax.Array) -> jax.Array:
    """Σ_w softmax(units·kernel)_w · units_w over the units inside a span: BSWX → BSX (Lee et al. 2017, section 4)."""
    scores_BSW = jnp.einsum("BSWX,SX->BSW", units_BSWX, kernel_SX)
    attention_BSW = jax.nn.softmax(jnp.where(inside_BSW, scores_BSW, -jnp.inf), -1)
    return jnp.einsum("BSW,BSWX->BSX", attention_BSW, units_BSWX)


def probe_logits(params: ProbeParams, layers_N: jax.Array, units_BSWND: jax.Array, inside_BSW: jax.Array) -> jax.Array:
    """The logits of all labels, f32 BC. layers_N: which layers the probe reads."""
    mixed_BSWD = mix_layers(params["mix"], layers_N, units_BSWND)
    project, hidden, out = params["project"], params["hidden"], params["out"]
    bias_1S1X = project["bias_SX"][None, :, None]
    units_BSWX = jnp.einsum("BSWD,SDX->BSWX", mixed_BSWD, project["kernel_SDX"]) + bias_1S1X
    spans_BSX = pool_spans(params["attend"]["kernel_SX"], units_BSWX, inside_BSW)
    # The spans' vectors concatenated, then a layer of tanh with layer normalisation.
    hidden_BY = jnp.tanh(jnp.einsum("BSX,SXY->BY", spans_BSX, hidden["kernel_SXY"]) + hidden["bias_Y"][None])
    mean_B1, variance_B1 = hidden_BY.mean(-1, keepdims=True), hidden_BY.var(-1, keepdims=True)
    hidden_BY = (hidden_BY - mean_B1) * jax.lax.rsqrt(variance_B1 + _EPS)
    hidden_BY = hidden_BY * hidden["scale_Y"][None] + hidden["shift_Y"][None]
    return jnp.einsum("BY,YC->BC", hidden_BY, out["kernel_YC"]) + out["bias_C"][None]


def binary_cross_entropy(logits_BC: jax.Array, labels_BC: jax.Array) -> jax.Array:
    """-y·log σ(x) - (1 - y)·log(1 - σ(x)), the mean over labels: f32 B."""
    losses_BC = jax.nn.softplus(logits_BC) - labels_BC * logits_BC
    return losses_BC.mean(-1)
