"""The chunked softmax on a mesh: a vocabulary that nothing divides, and one gather of the table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding

from contexture.models import sharding
from contexture.models.heads import chunked_softmax
from contexture.models.heads.chunked_softmax import next_token_loss
from contexture.models.sharding import CONTEXT_AXES, MESH_AXES, partition_spec
from contexture.train.plan.hlo import Program, parse
from tests.helpers.jaxprs import equations
from tests.helpers.long import long
from tests.helpers.parity_rule import close

B, L, D = 4, 6, 8


def arrays(words: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(words)
    return {
        "BLD": rng.normal(size=(B, L, D)).astype(np.float32),
        "VD": rng.normal(size=(words, D)).astype(np.float32),
        "V": rng.normal(size=(words,)).astype(np.float32),
        "BL": rng.integers(0, words, (B, L)),
    }


def gradients(x_BLD, table_VD, bias_V, next_BL):
    def total(x_BLD, table_VD, bias_V):
        return next_token_loss(x_BLD, table_VD, next_BL, jnp.ones((B, L)), bias_V).total

    return jax.value_and_grad(total, (0, 1, 2))(x_BLD, table_VD, bias_V)


def on_mesh(shape: tuple[int, ...], words: int):
    axes = MESH_AXES if len(shape) == 3 else CONTEXT_AXES
    devices = np.array(jax.devices()[: np.prod(shape)]).reshape(shape)
    mesh = Mesh(devices, axes, axis_types=(AxisType.Auto,) * len(axes))
    with jax.set_mesh(mesh):
        placed = [jax.device_put(x, NamedSharding(mesh, partition_spec(dims, x.shape, dict(mesh.shape))))
                  for dims, x in arrays(words).items()]  # fmt: skip
        compiled = jax.jit(gradients).lower(*placed).compile()
        return jax.device_get(compiled(*placed)), parse(str(compiled.as_text()))


def inside_loops(program: Program, name: str) -> list[str]:
    """The instructions of a computation, and of those that it calls."""
    lines = []
    for instruction in program.computation(name).values():
        lines.append(f"{instruction.result} {instruction.opcode}")
        for key in ("body", "calls", "to_apply"):
            lines += inside_loops(program, instruction.attribute(key)) if instruction.attribute(key) else []
    return lines


@pytest.mark.parametrize(
    ("shape", "words"),
    [((2, 2, 2), 61), ((1, 2, 2, 2), 61), *long(((2, 2, 2), 64), ((1, 2, 4), 61), ((1, 2, 4), 64), ((2, 1, 4, 1), 61))],
)
def test_a_vocabulary_that_nothing_divides_has_the_losses_of_one_device(monkeypatch, words, shape):
    monkeypatch.setattr(chunked_softmax, "MAX_LOGITS", 2 * 64)
    alone, _ = on_mesh((1, 1, 1), words)
    result, program = on_mesh(shape, words)
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(alone), strict=True):
        close(a, b)
    loops = [i for c in program.computations.values() for i in c.values() if i.opcode == "while"]
    assert loops
    for loop in loops:  # the table is gathered before the chunks, and each chunk's logits stay where its words are
        gathers = [line for line in inside_loops(program, loop.attribute("body")) if "all-gather" in line]
        assert not any(f"{D})" in line and f"({words}" in line for line in gathers), gathers


def test_a_devices_memory_says_how_many_logits_it_holds_at_once(monkeypatch):
    counts = {}
    for memory in (0.0, 16.0, 140.0):
        monkeypatch.setattr(chunked_softmax, "device_memory", lambda memory=memory: memory)
        x, table = jax.ShapeDtypeStruct((64, 1024, 8), "float32"), jax.ShapeDtypeStruct((50257, 8), "float32")
        labels = jax.ShapeDtypeStruct((64, 1024), "int32")
        traced = jax.make_jaxpr(lambda x, t, n: chunked_softmax._loss(x, t, None, n, jnp.ones((64, 1024))))(
            x, table, labels
        )
        scans = [e.params["length"] for e in equations(traced.jaxpr) if e.primitive.name == "scan"]
        counts[memory] = max(scans, default=1)
    # ceil(1024 / floor(limit / (64 · 50257))): 5 positions of 64 sequences at a time, then 10 and 91.
    assert counts == {0.0: 205, 16.0: 103, 140.0: 12}


@pytest.mark.parametrize(("kind", "memory"), [("cpu", 0.0), ("TPU v5 lite", 15.75), ("NVIDIA H200", 140.4)])
def test_a_devices_memory_is_known_by_its_kind(monkeypatch, kind, memory):
    class Device:
        device_kind = kind

    monkeypatch.setattr(jax, "devices", lambda: [Device()])
    assert sharding.device_memory() == memory
