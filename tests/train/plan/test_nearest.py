"""`contexture plan` of what does not fit, and of fine-tunings: which steps are compiled, and which is the nearest."""

import dataclasses
import json
import math
import re
from collections.abc import Callable
from typing import Any, cast

import jax
import pytest

from contexture.cli import main as cli
from contexture.models.bert import training_flops
from contexture.models.config import BertConfig
from contexture.models.layers.remat import KEPT
from contexture.train import mesh as meshes
from contexture.train.checkpoints.transfer import model_of
from contexture.train.errors import ConfigError
from contexture.train.objectives import batch_sizes
from contexture.train.plan import topology as topologies
from contexture.train.plan.chips import CHIPS
from contexture.train.plan.describe import describe_all, options_of
from contexture.train.plan.plan import Plan, abstract_step
from contexture.train.plan.suggest import MAX_PROGRAMS, _activations, _seconds, candidates, nearest, suggest
from contexture.train.plan.topology import Topology, topology
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord, write
from contexture.train.settings.sections import MeshConfig
from contexture.train.step import create
from tests.train.plan.test_plan import TINY, eight_devices, tiny

__all__ = ["eight_devices"]  # the fixture of the other plans


def planned_by(needs: Callable[[Run], float]) -> Callable[..., Plan]:
    """A stand-in for the compiler: bytes of a device from the run's mesh and parts."""

    def plan(run: Run, devices: Topology, name: str = "") -> Plan:
        total, mesh = needs(run), {axis: getattr(run.mesh, axis) for axis in ("data", "fsdp", "tensor")}
        memory = {"parameters": 0, "optimizer": 0, "carry": 0, "batch": 0, "saved_activations": 0, "temporaries": total}
        return cast(Plan, {
            "recipe": name, "topology": devices.name, "devices": len(devices.devices), "mesh": mesh, "length": 16,
            "batch": run.data.batch, "accumulate": run.optim.accumulate, "remat": "none", "attention": "", "fits":
            total <= devices.memory, "parameters": 1, "compiler_options": {}, "compile_seconds": 0.0, "warnings": [],
            "bytes_per_device": {**memory, "total": total, "available": devices.memory},
        })  # fmt: skip

    return plan


def test_what_does_not_fit_ends_with_the_nearest_that_does(monkeypatch, capsys):
    devices = dataclasses.replace(topology("cpu:4"), memory=2.0**22)
    monkeypatch.setattr(topologies, "topology", lambda text, gbps: devices)
    for module in ("plan", "suggest"):
        by_fsdp = planned_by(lambda run: 2.0**23 / run.mesh.fsdp)
        monkeypatch.setattr(f"contexture.train.plan.{module}.plan", by_fsdp)
    words = ["plan", "bert.tiny", "--topology", "cpu:8", *map(str, TINY)]
    assert cli.main([*words, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert not result["fits"] and result["nearest"]["fits"] and result["nearest"]["mesh"]["fsdp"] >= 2
    assert cli.main([*words, "--mesh.fsdp", "4"]) == 0
    monkeypatch.setattr("contexture.train.plan.suggest.plan", planned_by(lambda run: 2.0**30))
    capsys.readouterr()
    assert cli.main(words) == 1
    assert capsys.readouterr().out.rstrip().endswith("none was found; give more devices, or a smaller --data.batch")


def test_nearest_takes_more_parts_before_other_meshes(monkeypatch):
    """One device, of which a part of a batch is all that fits."""
    devices = dataclasses.replace(topology("cpu:1"), memory=2.0**22)
    monkeypatch.setattr("contexture.train.plan.suggest.plan", planned_by(lambda run: 2.0**24 / run.optim.accumulate))
    found = nearest(tiny(), devices)
    assert found is not None and (found["accumulate"], found["devices"]) == (4, 1)


@pytest.mark.long
def test_nearest_looks_at_more_devices_of_the_same_kind(monkeypatch):
    """A stand-in: devices of which only four or more have the memory."""
    seen = list[str]()

    def some(text: str, gbps: float = 25.0) -> Topology:
        seen.append(text)
        devices = jax.devices()[: int(text.partition(":1x")[2])]
        return Topology(text, CHIPS["t4"], devices, 2.0**40 if len(devices) >= 4 else 1.0)

    monkeypatch.setattr("contexture.train.plan.suggest.topology", some)
    monkeypatch.setattr("contexture.train.plan.suggest.plan", planned_by(lambda run: 2.0**30))
    found = nearest(tiny(), dataclasses.replace(some("t4:1x1"), name="t4:1"))
    assert found is not None and found["topology"] == "t4:1x4" and seen == ["t4:1x1", "t4:1x2", "t4:1x4"]


@pytest.mark.long
def test_where_no_slice_is_larger_nothing_is_nearest(monkeypatch):
    monkeypatch.setattr("contexture.train.plan.suggest.plan", planned_by(lambda run: 2.0**30))
    for name in ("v5p:4x4x12", "v5e:4x12"):
        devices = Topology(name, CHIPS[name[:3]], jax.devices()[:1], 1.0)
        assert nearest(tiny(), devices) is None


@pytest.mark.long
def test_a_fine_tuning_is_planned(monkeypatch, tmp_path):
    """Of a recipe's model, or of a run: with a head for a class, and none for words."""
    runs = list[Run]()
    write(tmp_path, RunRecord(run=tiny()))
    monkeypatch.setattr(
        "contexture.train.plan.plan.plan", lambda run, *_: runs.append(run) or planned_by(lambda run: 1.0)(run, *_)
    )
    for name in ("bert.tiny", str(tmp_path)):
        for task in ([], ["--task.kind", "classify"]):
            assert cli.main(["plan", name, "--topology", "cpu:8", *map(str, TINY), *task]) == 0
    assert [run.task.kind for run in runs] == ["off", "classify"] * 2
    with jax.set_mesh(meshes.build(runs[1].mesh, jax.devices()[:8])):
        heads = [set(abstract_step(run, meshes.build(run.mesh, jax.devices()[:8]))[1].params) for run in runs]
    assert heads[0] == heads[2] and heads[1] == heads[3] == {"backbone", "heads_classify"} != heads[0]


def test_the_options_of_a_plan_are_those_that_train_it():
    made: Any = {"mesh": {"data": 2, "fsdp": 4}, "batch": 64, "accumulate": 2, "remat": "", "attention": "gpu"}
    given = "--mesh.data 2 --mesh.fsdp 4 --data.batch 64 --optim.accumulate 2"
    assert options_of(made) == given
    made |= {"remat": "dots", "attention": "reference: no kernel for cpu"}
    assert options_of(made) == f"{given} --model.remat dots --model.unroll 1 --model.attention reference"


def test_suggestions_are_those_that_fit_and_then_the_fastest(monkeypatch):
    """The stand-in's memory is by fsdp and parts, its time by data and attention: on four devices a few ways fit."""
    compiled: list[Run] = []

    def plan(run: Run, devices: Topology, name: str = "") -> Plan:
        compiled.append(run)
        made: Any = planned_by(lambda run: 2.0**23 / (run.mesh.fsdp * run.optim.accumulate))(run, devices, name)
        attention = getattr(run.model, "attention", "")
        used = "reference: no kernel for cpu" if attention == "auto" else attention
        remat = getattr(run.model, "remat", "") or "none"
        return made | {"attention": used, "remat": remat, "step_ms": 10.0 / run.mesh.data + run.optim.accumulate}

    monkeypatch.setattr("contexture.train.plan.suggest.plan", plan)
    devices = dataclasses.replace(topology("cpu:4"), memory=2.0**22)
    plans = suggest(tiny(), devices)
    fits = [made for made in plans if made["fits"]]
    assert plans[: len(fits)] == fits and len(fits) >= 3 and len(plans) == len(compiled) <= MAX_PROGRAMS
    for group in (fits, plans[len(fits) :]):
        times = [made.get("step_ms", 0.0) for made in group]
        assert times == sorted(times)
    ways = {
        (*made["mesh"].values(), made["accumulate"], made["remat"], made["attention"].partition(":")[0])
        for made in plans
    }
    assert len(ways) == len(plans) and all(data * fsdp * tensor == 4 for data, fsdp, tensor, *_ in ways)
    with pytest.raises(ConfigError, match="--suggest plans one size of batch; leave --data.ramp-from out"):
        suggest(dataclasses.replace(tiny(), data=dataclasses.replace(tiny().data, ramp_from=4, ramp_steps=2)), devices)


@pytest.mark.parametrize("mesh", [(1, 1, 1), (4, 1, 1), (1, 4, 1), (2, 2, 1), (1, 1, 2), (2, 2, 2)])
@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_step_is_estimated_by_products_and_messages(mesh, remat):
    """A rule of thumb, pinned term by term: it ranks the ways, and is shown nowhere."""
    data, fsdp, tensor = mesh
    run = dataclasses.replace(tiny(), mesh=MeshConfig(data=data, fsdp=fsdp, tensor=tensor))
    run = dataclasses.replace(run, optim=dataclasses.replace(run.optim, accumulate=2))
    model, chip, parameters = cast(BertConfig, run.model), CHIPS["v5e"], 10**9
    slowdown = {"none": 1.0, "full": 4 / 3}[remat]
    flops = training_flops(model, batch_sizes(run, run.data.batch))
    compute = slowdown * flops / (data * fsdp * tensor) / chip.bf16
    own = 4 * parameters / tensor
    sent = 2 * own / fsdp * (data > 1)
    gathers = {"none": 2, "full": 3}[remat]  # a layer that is computed twice is gathered once more
    sent += 2 * (own + gathers * own / 2) * (fsdp > 1)
    words = run.data.batch / (data * fsdp) * run.data.length
    sent += 4 * model.layers * words * model.hidden * 2 * 2 * (tensor > 1)
    messages = sent / chip.links
    expected = max(compute, messages) + 0.1 * min(compute, messages)
    assert _seconds(run, parameters, slowdown, chip) == pytest.approx(expected, rel=1e-12)
    assert _seconds(run, parameters, slowdown, None) == slowdown


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_activations_are_estimated_by_what_each_layer_keeps(tensor, dtype, size, remat):
    """A rule of thumb, pinned: it leaves out ways that cannot fit, before they are compiled."""
    run = dataclasses.replace(tiny(), mesh=MeshConfig(tensor=tensor))
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, dtype=dtype))
    model = cast(BertConfig, run.model)
    whole = {"none": 6, "dots": 2, "full": 1}[remat]
    kept = whole + (KEPT[remat] - whole) / tensor
    expected = 3 * run.data.length * model.hidden * size * (kept * model.layers + 40 / tensor)
    assert _activations(run, 3, remat) == pytest.approx(expected, rel=1e-12)


def test_a_table_of_plans_has_a_row_for_each_and_the_options_of_the_best():
    timed: Any = {
        "mesh": {"data": 2, "fsdp": 4, "tensor": 1}, "batch": 64, "accumulate": 2, "remat": "dots", "fits": True,
        "attention": "gpu: a kernel", "bytes_per_device": {"total": 3 * 2**29}, "step_ms": 12.6, "bound_by": "compute",
        "mfu": 0.456, "days": 1.26,
    }  # fmt: skip
    untimed = {name: x for name, x in timed.items() if name not in ("step_ms", "bound_by", "mfu", "days")}
    untimed |= {"remat": "", "attention": "", "fits": False, "bytes_per_device": {"total": 2**34}}
    lines = describe_all([timed, timed | {"days": None}, cast(Plan, untimed)]).splitlines()
    cells = [re.split("  +", line) for line in lines[:4]]
    assert cells[0] == [
        "mesh",
        "batch",
        "parts",
        "remat",
        "attention",
        "GiB",
        "fits",
        "ms a step",
        "bound by",
        "MFU",
        "days",
    ]
    assert cells[1] == ["2×4×1", "64", "2", "dots", "gpu", "1.5", "yes", "13", "compute", "0.46", "1.3"]
    assert cells[2] == [*cells[1][:-1], "–"]
    assert cells[3] == ["2×4×1", "64", "2", "–", "–", "16.0", "NO", "–", "–", "–", "–"]
    assert lines[4:] == [f"options: {options_of(timed)}"]
    assert describe_all([cast(Plan, untimed)]).splitlines()[-1] == "nothing fits; give more devices"


def test_a_way_is_tried_where_its_estimate_leaves_a_twelfth_of_the_memory():
    run = tiny()
    devices = topology("cpu:1")
    with jax.set_mesh(mesh := meshes.build(run.mesh, list(devices.devices)[:1])):
        arrays = jax.tree.leaves(create(model_of(run, ()), run, mesh)[1])
    state = sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays)
    needed = state * 4 / 3 + _activations(run, run.data.batch, "none")
    for memory, parts in ((needed / 0.92 * 1.0001, 1), (needed / 0.92 * 0.9999, 2)):
        found = candidates(run, dataclasses.replace(devices, memory=memory))
        ways = {cast(BertConfig, each.run.model).remat: each.run.optim.accumulate for each in found}
        assert ways["none"] == parts
