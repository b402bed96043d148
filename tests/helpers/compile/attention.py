"""Compiles attention and its gradients for devices that are not here, and prints what the programs are, a JSON line for
each length: `python -m tests.helpers.compile.attention tpu v5e:2x2 512 2048`."""

import json
import os
import sys
import warnings
from typing import Any

os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # tests run beside each other
os.environ["JAX_PLATFORMS"] = "cpu"
warnings.simplefilter("ignore")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from contexture.models.layers.attention.mask import AttentionMask  # noqa: E402
from contexture.models.layers.attention.module import attend  # noqa: E402
from contexture.models.layers.dropout import DropoutKey, WeightDropout, dropout_key  # noqa: E402

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 62914560 clock_rate_ghz: 1.98 device_memory_size: 150000000000
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } device_description_str: "NVIDIA H200"
"""
B, H, K = 4, 8, 64


def devices(platform: str, name: str) -> list[Any]:
    if platform == "tpu":
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    described = topologies.get_topology_desc(
        platform="cuda", topology_name="h200", target_config=H200, topology="1x1x4"
    )  # fmt: skip
    return list(described.devices)


def gradients(mask_of, q, k, v, tokens, dy):
    key = dropout_key(3, jnp.int32(5), jnp.arange(B))
    mask = mask_of(tokens)
    # Texts that share a row have dropout of their own.
    if mask.packs_BL is not None and not mask.causal:
        key = DropoutKey(key.key, key.row_B, tokens, tokens)
    y, pull = jax.vjp(lambda q, k, v: attend(q, k, v, mask, WeightDropout(0.1, key, 4)), q, k, v)
    return y, pull(dy)


MASKS = {
    "padded": lambda tokens: AttentionMask(tokens_BM=tokens),
    "banded": lambda tokens: AttentionMask(causal=True, window=jnp.int32(128)),
    "packed": lambda tokens: AttentionMask(packs_BL=tokens, causal=True),
    "shared rows": lambda tokens: AttentionMask(packs_BL=tokens),
}


def main(platform: str, name: str, *lengths: str) -> None:
    mesh = jax.sharding.Mesh(np.array(devices(platform, name)).reshape(1, 2, -1), ("data", "fsdp", "tensor"))
    options: Any = {"xla_gpu_autotune_level": "0"} if platform == "gpu" else None
    for length in map(int, lengths):
        x, tokens = (
            jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))
            for shape, dtype, axes in (
                ((B, length, H, K), jnp.bfloat16, (("data", "fsdp"), None, "tensor")),
                ((B, length), jnp.int32, (("data", "fsdp"),)),
            )
        )
        for kind, mask_of in MASKS.items():
            with jax.set_mesh(mesh):
                lowered = jax.jit(gradients, static_argnums=0).lower(mask_of, x, x, x, tokens, x)
                compiled = lowered.compile(compiler_options=options)
            memory: Any = compiled.memory_analysis()
            text = str(compiled.as_text())
            square = f"{length},{length}]" in text
            print(json.dumps({"kind": kind, "length": length, "temporary": memory.temp_size_in_bytes,
                              "arguments": memory.argument_size_in_bytes, "square": square}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
