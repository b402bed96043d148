"""How long a planned step takes at the peaks of its chip, and which chips a name stands for."""

import dataclasses
import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from contexture.models.sharding import gpu_memory_fraction
from contexture.train.errors import ConfigError
from contexture.train.plan import topology as topologies
from contexture.train.plan.chips import CHIPS, Chip
from contexture.train.plan.costs import Traffic
from contexture.train.plan.plan import _flops, _with_roofline
from contexture.train.plan.topology import Topology
from tests.train.plan.test_plan import tiny

TPU = Chip("x", "tpu", bf16=8e9, f32=1e9, int8=16e9, fp8=32e9, bandwidth=4e9, memory=1e9, links=2e9)
GPU = dataclasses.replace(TPU, platform="gpu")


def test_products_take_the_peak_of_their_type():
    flops = {"f32": 8e9, "bf16": 8e9, "f64": 1e9, "s8": 16e9, "u8": 32e9, "f8e4m3fn": 32e9, "f8e5m2": 64e9,
             "f32:highest": 1e9, "f32:high": 8e9, "f16": 16e9}  # fmt: skip
    times = {
        "bf16": 1,
        "f64": 2,
        "s8": 1,
        "u8": 2,
        "f8e4m3fn": 1,
        "f8e5m2": 2,
        "f32:highest": 1,
        "f32:high": 3,
        "f16": 2,
    }
    for chip, of_f32 in ((TPU, 1), (GPU, 8)):  # a TPU multiplies f32 as bf16 unless more is asked for
        for dtype, seconds in {**times, "f32": of_f32}.items():
            assert chip.seconds({dtype: flops[dtype]}) == pytest.approx(seconds), (chip.platform, dtype)
        assert chip.seconds(flops) == pytest.approx(sum(times.values()) + of_f32)


@pytest.mark.parametrize(
    ("numbers", "bound", "ms"),
    [((16e6, 4e6, 1e6), "compute", 2), ((8e6, 12e6, 1e6), "memory", 3), ((8e6, 4e6, 8e6), "links", 4)],
)
def test_a_step_takes_as_long_as_what_it_has_most_of(numbers, bound, ms):
    flops, memory, sent = numbers
    made: Any = {"model_flops": 4e6, "devices": 8, "other": 1}
    cost: Any = SimpleNamespace(memory_bytes=memory, sent_bytes=sent, slices=Traffic(1, 3e6))
    devices = Topology("tpu", TPU, [], 1.0)
    run = dataclasses.replace(tiny(), steps=90_000)
    found: Any = _with_roofline(made, cost, {"bf16": flops}, run, devices)
    assert found["milliseconds"] == pytest.approx({"compute": flops / 8e6, "memory": memory / 4e6, "links": sent / 2e6})
    assert (found["bound_by"], found["other"]) == (bound, 1) and found["step_ms"] == pytest.approx(ms)
    assert found["mfu"] == pytest.approx(4e6 / 8e9 / (ms / 1e3))
    # What the program computes, whatever the formula counts; a kernel may skip what the formula counts.
    assert found["hfu"] == pytest.approx(flops / 8e6 / ms) and found["hfu"] <= 1
    skipping: Any = {**made, "model_flops": 4e9}
    assert _with_roofline(skipping, cost, {"bf16": flops}, run, devices)["mfu"] == 1
    # Of N slices, all but one of N parts go round their ring twice: 4.5 MB at 8 Gbit/s.
    several = dataclasses.replace(devices, slices=4, slice_gbps=8.0)
    slow: Any = _with_roofline(made, cost, {"bf16": flops}, run, several)
    assert slow["milliseconds"]["slices"] == pytest.approx(4.5)
    assert (slow["bound_by"], slow["step_ms"]) == ("slices", pytest.approx(4.5))
    assert found["tokens_per_second"] == pytest.approx(run.data.batch * run.data.length * 1000 / ms)
    hours = 90_000 * ms / 1000 / 3600
    assert (found["steps"], found["days"], found["chip_hours"]) == pytest.approx((90_000, hours / 24, 8 * hours))
    found = _with_roofline(made, cost, {"bf16": flops}, dataclasses.replace(run, steps=0, epochs=1.0), devices)
    assert (found["steps"], found["days"], found["chip_hours"]) == (None, None, None)


def test_a_gpus_hidden_products_are_those_of_the_traced_program():
    compiled, traced = {"bf16": 10.0}, {"bf16": 64.0, "f32": 16.0, "kernel": 8.0}
    on: Any = {name: SimpleNamespace(chip=chip) for name, chip in (("gpu", GPU), ("tpu", TPU), ("cpu", None))}
    assert _flops(compiled, dict(traced), 4, on["gpu"]) == {"bf16": 16.0 + 2.0, "f32": 4.0}
    for name in ("tpu", "cpu"):
        assert _flops(compiled, dict(traced), 4, on[name]) == {"bf16": 12.0}
    assert _flops({"bf16": 21.0}, dict(traced), 4, on["gpu"]) == {"bf16": 23.0}


@pytest.mark.parametrize(
    ("text", "shown", "asked"),
    [
        ("v5e:4x4", "v5e:4x4", {"platform": "tpu", "topology_name": "v5e:4x4"}),
        ("h100:2x8", "h100:2x8", {"platform": "cuda", "topology_name": "h100:2x8", "topology": "1x2x8"}),
        ("l4", "l4:1", {"platform": "cuda", "topology_name": "l4:1", "topology": "1x1x1"}),
    ],
)
def test_a_compiler_is_asked_for_the_devices_of_a_name(monkeypatch, text, shown, asked):
    from jax.experimental import topologies as of_jax

    seen: dict[str, Any] = {}

    def described(**options: Any) -> Any:
        seen.update(options)
        if "target_config" in options:
            assert options["target_config"] == CHIPS[text.partition(":")[0]].target
        return SimpleNamespace(devices=["a device"])

    monkeypatch.setattr(topologies, "_check_compiler", lambda chip: None)
    monkeypatch.setattr(importlib, "import_module", lambda name: None)
    monkeypatch.setattr(of_jax, "get_topology_desc", described)
    found = topologies.topology(text)
    assert {name: x for name, x in seen.items() if name != "target_config"} == asked
    chip = CHIPS[text.partition(":")[0]]
    share = gpu_memory_fraction() if chip.platform == "gpu" else 1.0
    assert (found.name, found.chip, found.devices) == (shown, chip, ["a device"]) and 0.5 < share <= 1.0
    assert found.memory == pytest.approx(chip.memory * share)

    def unknown(**_: Any) -> Any:
        raise RuntimeError("\nno slice of that form\nand more")

    monkeypatch.setattr(of_jax, "get_topology_desc", unknown)
    with pytest.raises(ConfigError, match="its compiler knows no such slice: no slice of that form$"):
        topologies.topology(text)
