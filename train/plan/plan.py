"""Compiles a run's own training step for devices that are not here, and reports what it needs."""

import contextlib
import dataclasses
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

import contexture
from contexture.models.families import family_of
from contexture.models.shapes import count
from contexture.train import mesh as meshes
from contexture.train.checkpoints.transfer import model_of
from contexture.train.errors import ConfigError
from contexture.train.objectives import batch_fields, batch_sizes, objective_of
from contexture.train.plan import costs as program_costs
from contexture.train.plan.chips import Chip
from contexture.train.plan.flops import Flops, add, traced_flops
from contexture.train.plan.hlo import Program, parse
from contexture.train.plan.topology import Topology
from contexture.train.programs import step_settings
from contexture.train.settings.run import Run
from contexture.train.step import State, create, train_step

_NUMBER_TYPES = {"i32": "int32", "f32": "float32"}
# How the compiler for TPUs says what a program would need: all of it, or its temporary arrays alone.
_OUT_OF_MEMORY = re.compile(r"(?:Used ([\d.]+)([KMGT]?) of|HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LABELS = ("0", "1")
_PARTITIONER = re.compile("Involuntary full rematerialization|SPMD")
_FOLDER = str(Path(os.path.realpath(contexture.models.__path__[0])).parent)


class Memory(TypedDict):
    """Bytes of one device.

    saved_activations  what a loop over layers keeps for the backward pass; None where there is no such loop, or no
                       program that fits: they count among the temporaries
    total              at the peak of a step
    available          what programs may use
    """

    parameters: int
    optimizer: int
    carry: int
    batch: int
    saved_activations: int | None
    temporaries: int
    total: int
    available: int


class Milliseconds(TypedDict):
    """The least time of a step for each resource by its peak, all loops counted."""

    compute: float
    memory: float
    links: float


class Plan(TypedDict):
    """What a run's training step takes of each device. A step that fits has the figures of a `CompiledPlan` too."""

    recipe: str
    topology: str
    devices: int
    mesh: dict[str, int]
    batch: int
    length: int
    accumulate: int
    attention: str
    remat: str
    parameters: int
    compiler_options: dict[str, str | bool | int]
    fits: bool
    bytes_per_device: Memory
    compile_seconds: float
    warnings: list[str]


class CompiledPlan(Plan):
    """With the figures of the compiled program, of one step on one device.

    flops            as compiled: what is computed twice counts twice
    model_flops      by the model's formula
    memory_traffic   bytes that it reads and writes in memory
    collectives      messages: {kind: {"count": …, "bytes": …}}
    """

    largest_arrays: list[dict[str, object]]
    flops: float
    model_flops: float
    memory_traffic: float
    collectives: dict[str, dict[str, float]]


class TimedPlan(CompiledPlan):
    """With what the chip's peaks allow.

    step_ms            the roofline: the largest of `milliseconds`, as if the others overlapped with it
    mfu                model_flops in that time, as a share of the peak
    steps              of the run; None if it counts in epochs, which the data turns into steps
    days, chip_hours   for all of them; a smaller batch at first (data.ramp-from) takes less time
    """

    milliseconds: Milliseconds
    bound_by: str
    step_ms: float
    mfu: float
    tokens_per_second: float
    steps: int | None
    days: float | None
    chip_hours: float | None


def plan(run: Run, topology: Topology, name: str = "") -> Plan | CompiledPlan | TimedPlan:
    """Returns what training `run` on `topology` takes. name: of its recipe.

    Compiles for minutes where a model is large. Raises ConfigError for a mesh that the devices do not hold, or a batch
    that they cannot share.
    """
    mesh = meshes.build(run.mesh, list(topology.devices))
    meshes.check_batch(mesh, run.data.batch, run.optim.accumulate, "data.batch")
    with meshes.use(mesh, run.model.dtype):
        meshes.check_compiler_options(run.mesh, mesh)
        attention = meshes.describe_attention(run.model, run.data.packed)
        remat = meshes.describe_remat(run.model, batch_sizes(run, run.data.batch // run.optim.accumulate))
        step, state, batch = abstract_step(run, mesh)
        started = time.monotonic()
        # The partitioner reports unwanted gathers on stderr alone.
        with captured_stderr() as messages, compiling_anew():
            traced = step.trace(state, batch, step_settings(run))
            compiled, used = _compile(traced, _bytes((state, batch)))
        seconds = time.monotonic() - started
    memory = _memory(state, batch, topology.memory)
    made: Plan = {
        "recipe": name,
        "topology": topology.name,
        "devices": mesh.size,
        "mesh": dict(mesh.shape),
        "batch": run.data.batch,
        "length": run.data.length,
        "accumulate": run.optim.accumulate,
        "attention": attention,
        "remat": remat,
        "parameters": count(state.params),
        "fits": False,
        "bytes_per_device": memory,
        "compile_seconds": round(seconds, 1),
        "compiler_options": meshes.compiler_options(run.mesh, mesh),
        "warnings": [line[-300:] for line in messages if _PARTITIONER.search(line)],
    }
    if compiled is None:
        memory["temporaries"], memory["total"] = used
        return made
    program = parse(compiled.as_text())
    _count_memory(memory, compiled, program)
    cost = program_costs.costs(program)
    flops = _flops(cost.flops, traced_flops(traced.jaxpr.jaxpr), mesh.size, topology)
    largest = program_costs.largest_arrays(program, _FOLDER)
    made["fits"] = memory["total"] <= memory["available"]
    of_model = family_of(run.model).training_flops(run.model, batch_sizes(run, run.data.batch))
    figures: CompiledPlan = {
        **made,
        "largest_arrays": [program_costs.as_record(row) for row in largest],
        "flops": float(sum(flops.values())),
        "model_flops": of_model / mesh.size,
        "memory_traffic": cost.memory_bytes,
        "collectives": {kind: dataclasses.asdict(traffic) for kind, traffic in cost.collectives.items()},
    }
    return figures if topology.chip is None else _with_roofline(figures, cost, flops, run, topology.chip)


def _count_memory(memory: Memory, compiled: Any, program: Program) -> None:
    """Adds what a compiled step takes beside its arguments."""
    analysis: Any = compiled.memory_analysis()
    memory["total"] = (
        analysis.argument_size_in_bytes
        + analysis.temp_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
    )
    memory["temporaries"] = analysis.temp_size_in_bytes
    if saved := program_costs.saved_activations(program):
        memory["saved_activations"] = min(int(saved), analysis.temp_size_in_bytes)
        memory["temporaries"] -= memory["saved_activations"]


def abstract_step(run: Run, mesh: Mesh) -> tuple[Any, State, dict[str, jax.ShapeDtypeStruct]]:
    """Returns (the jitted step that `train` runs, its state, its batch), the latter two as shapes with shardings."""
    # Of a task two labels: their number is that of the examples, and plays no part in memory and time.
    model, objective = model_of(run, _LABELS if run.task.kind != "off" else ()), objective_of(run)
    _, shapes, shardings = create(model, run, mesh)
    state = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    sizes, batch = batch_sizes(run, run.data.batch), {}
    for field, spec in batch_fields(run).items():
        kind, _, dims = spec.partition(" ")
        shape = tuple(sizes[letter] for letter in dims)
        batch[field] = jax.ShapeDtypeStruct(shape, _NUMBER_TYPES[kind], sharding=meshes.sharding(mesh, dims, shape))
    return train_step(model, objective, run, mesh).jitted, state, batch


def _compile(traced: Any, arguments: int) -> tuple[Any, tuple[int, int]]:
    """Returns (the compiled step, zeros), or (None, bytes of (its temporary arrays, all)) if no device has the memory
    for it. arguments: bytes of the state and the batch."""
    lowered = traced.lower()
    try:
        return lowered.compile(), (0, 0)
    except jax.errors.JaxRuntimeError as error:
        if match := _OUT_OF_MEMORY.search(str(error)):
            total, unit, temporaries, its_unit = match.groups()
            if total:
                size = int(float(total) * _UNITS[unit])
                return None, (max(size - arguments, 0), size)
            size = int(float(temporaries) * _UNITS[its_unit])
            return None, (size, size + arguments)
        line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(f"the step does not compile for these devices: {line}") from error


@contextlib.contextmanager
def compiling_anew() -> Iterator[None]:
    """Keeps jax from its cache of compiled programs: one from there comes without the partitioner's messages, and with
    the source lines of the day it was compiled."""
    enabled = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # jax decides once a process whether it has a cache
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def _memory(state: State, batch: dict[str, jax.ShapeDtypeStruct], available: float) -> Memory:
    return {
        "parameters": _bytes(state.params),
        "optimizer": _bytes(state.opt),
        "carry": _bytes(state.carry),
        "batch": _bytes(batch),
        "saved_activations": None,
        "temporaries": 0,
        "total": 0,
        "available": int(available),
    }


def _bytes(tree: Any) -> int:
    """Returns the bytes of a tree of sharded arrays that one device holds."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _flops(compiled: Flops, traced: Flops, devices: int, topology: Topology) -> Flops:
    """Returns a device's products. A GPU's compiler hides some in calls of its libraries: there the traced program
    counts, if it has more. Kernels are counted by their estimates."""
    kernels = traced.pop("kernel", 0.0)
    shares = {dtype: count / devices for dtype, count in traced.items()}
    on_gpu = topology.chip is not None and topology.chip.platform == "gpu"
    flops = shares if on_gpu and sum(shares.values()) > sum(compiled.values()) else dict(compiled)
    add(flops, {"bf16": kernels / devices})
    return flops


def _with_roofline(made: CompiledPlan, cost: program_costs.Costs, flops: Flops, run: Run, chip: Chip) -> TimedPlan:
    milliseconds: Milliseconds = {
        "compute": 1e3 * chip.seconds(flops),
        "memory": 1e3 * cost.memory_bytes / chip.bandwidth,
        "links": 1e3 * cost.sent_bytes / chip.links,
    }
    step_ms, bound_by = max((milliseconds[name], name) for name in ("compute", "memory", "links"))
    whole_batches = run.data.examples_before(run.steps) / run.data.batch
    hours = whole_batches * step_ms / 3.6e6 if run.steps else None
    return {
        **made,
        "milliseconds": milliseconds,
        "bound_by": bound_by,
        "step_ms": step_ms,
        "mfu": made["model_flops"] / chip.bf16 / (step_ms / 1e3),
        "tokens_per_second": run.data.batch * run.data.length / (step_ms / 1e3),
        "steps": run.steps or None,
        "days": None if hours is None else hours / 24,
        "chip_hours": None if hours is None else hours * made["devices"],
    }


@contextlib.contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """Keeps what is written to file 2, by C too, in the list that it gives, which is filled at the end."""
    lines: list[str] = []
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()
