"""Compiles the gradient of ELMo's character network, at the published size, for an H200 that is not here, with the
compiler's own flags."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from contexture.models.config import ElmoConfig  # noqa: E402
from contexture.models.elmo import sizes  # noqa: E402
from contexture.models.layers.char_cnn import CharCnn  # noqa: E402
from tests.helpers.compile.attention import devices  # noqa: E402


def main() -> None:
    config = ElmoConfig(cells=4096, projection=512, highway=2)
    module = CharCnn(sizes(config), config.filters, config.activation, config.highway, jnp.float32)
    mesh = jax.sharding.Mesh(np.array(devices("gpu", "h200:4")[:1]).reshape(1, 1, 1), ("data", "fsdp", "tensor"))
    whole = NamedSharding(mesh, PartitionSpec())

    def loss(params: object, types: jax.Array) -> jax.Array:
        return jnp.square(module.apply({"params": params}, types)).sum()  # pyright: ignore

    # The convolutions and highways of a run in float32 take all of its bits (train/mesh.py).
    jax.config.update("jax_default_matmul_precision", "float32")
    types = jax.ShapeDtypeStruct((6144, 50), jnp.int32, sharding=whole)
    with jax.set_mesh(mesh):
        shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.ones((4, 50), jnp.int32)))["params"]
        params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), shapes)
        # Without a GPU nothing can be timed: the compiler takes its own choice of tiles.
        jax.jit(jax.grad(loss)).lower(params, types).compile(compiler_options={"xla_gpu_autotune_level": "0"})
    print("compiled")


if __name__ == "__main__":
    main()
