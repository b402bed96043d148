"""The gradient of a table of embeddings on a mesh: its value, and what the devices exchange for it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding

from contexture.models.layers.blocks import lookup
from contexture.models.sharding import MESH_AXES, gathered, partition_spec
from tests.helpers.parity_rule import assert_close

V, D, B, L = 61, 16, 8, 5


def on_mesh(shape: tuple[int, int, int], letters: str):
    """(the gradients of the table, the compiled text), of a sum of looked up rows."""
    rng = np.random.default_rng(0)
    arrays = {"VD": rng.normal(size=(V, D)), "BL": rng.integers(0, V, (B, L)), "BLD": rng.normal(size=(B, L, D))}
    mesh = Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), MESH_AXES, axis_types=(AxisType.Auto,) * 3)

    def total(table_VD, index_BL, weight_BLD):
        whole_VD = gathered(table_VD, "VD", letters)
        return (lookup(whole_VD, index_BL) * weight_BLD).sum()

    with jax.set_mesh(mesh):
        shardings = [NamedSharding(mesh, partition_spec(dims, x.shape, dict(mesh.shape))) for dims, x in arrays.items()]
        placed = [jax.device_put(jnp.asarray(x, "int32" if x.dtype == int else "float32"), s)
                  for x, s in zip(arrays.values(), shardings, strict=True)]  # fmt: skip
        compiled = jax.jit(jax.grad(total), out_shardings=shardings[0]).lower(*placed).compile()
        return jax.device_get(compiled(*placed)), str(compiled.as_text())


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 4, 1), (2, 2, 2)])
def test_a_tables_gradient_on_a_mesh_is_that_of_one_device(shape):
    assert_close(on_mesh(shape, "V_")[0], on_mesh((1, 1, 1), "V_")[0], rtol=1e-5, atol=1e-6)


def test_copies_of_the_model_exchange_a_part_of_a_tables_gradient():
    """Over fsdp each device keeps its part; all eight together would exchange the whole."""
    _, text = on_mesh((2, 4, 1), "V_")
    sums = re.findall(r"= f32\[([\d,]+)\]\S* (?:all-reduce|reduce-scatter)\(", text)
    sizes = sorted(int(np.prod([int(size) for size in shape.split(",")])) for shape in sums)
    assert sizes == [V * D // 4, V * D], sums
