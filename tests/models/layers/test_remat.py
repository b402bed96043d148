"""What the backward pass computes again, by the memory that a device has left."""

import jax
import pytest

from contexture.models.layers import remat


@pytest.mark.parametrize(
    ("sequences", "width", "layers", "memory", "shards", "expected"),
    [
        (15, 4096, 32, 95.74, 64, "dots"),  # gpt3_6_7b on v5p:4x4x4: 82 GiB
        (15, 4096, 32, 95.74, 4, "full"),  # the same with parameters and moments of 18 GiB
        (15, 5120, 40, 95.74, 64, "full"),  # gpt3_13b
        (8, 800, 48, 15.75, 8, "dots"),
        (1, 800, 48, 15.75, 8, "none"),
        (15, 4096, 32, 0.0, 1, "none"),  # a CPU
        # Ten layers of 8 × 2,048 × 1,024 numbers of 16 bits: a width is 0.3125 GiB, and the parameters with their
        # moments take 1.40625 GiB. Twenty widths are 0.35 of what 19.264 GiB leave, nine are 0.78 of 5.012.
        (8, 1024, 10, 19.28, 1, "none"),
        (8, 1024, 10, 19.24, 1, "dots"),
        (8, 1024, 10, 5.02, 1, "dots"),
        (8, 1024, 10, 5.00, 1, "full"),
    ],
)
def test_what_is_kept_leaves_room_for_parameters_and_moments(
    monkeypatch, sequences, width, layers, memory, shards, expected
):
    monkeypatch.setattr(remat, "device_memory", lambda: memory)
    monkeypatch.setattr(remat, "model_shards", lambda: shards)
    x_BLD = jax.ShapeDtypeStruct((sequences, 2048, width), "bfloat16")
    assert remat.choose_remat(x_BLD, layers) == expected


def test_of_a_gpus_memory_counts_what_jax_takes(monkeypatch):
    """gpt3_1_3b on h200:1x8 would keep 108 GiB, more than the 105 that jax takes of 140."""
    monkeypatch.setattr(remat, "device_memory", lambda: 140.4)
    monkeypatch.setattr(remat, "model_shards", lambda: 8)
    monkeypatch.setattr(remat, "platform", lambda: "gpu")
    x_BLD = jax.ShapeDtypeStruct((64, 2048, 2048), "bfloat16")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert remat.choose_remat(x_BLD, 24) == "full"
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "1.0")
    assert remat.choose_remat(x_BLD, 24) == "dots"
