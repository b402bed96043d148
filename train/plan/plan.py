"""Compiles a run's own training step for devices that are absent, and reports what it needs."""

import contextlib
import dataclasses
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

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
from contexture.train.plan.flops import Flops, add, traced_flops
from contexture.train.plan.hlo import Program, parse
from contexture.train.plan.topology import Topology
from contexture.train.programs import step_settings
from contexture.train.settings.run import Run
from contexture.train.step import State, create, train_step

_NUMBER_TYPES = {"i32": "int32", "f32": "float32"}
# The TPU compiler's two messages about a program that does not fit: its total need, or only its temporaries.
_OUT_OF_MEMORY = re.compile(r"(?:Used ([\d.]+)([KMGT]?) of|HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LABELS = ("0", "1")
_PARTITIONER = re.compile("Involuntary full rematerialization|SPMD")
# The folder of our sources, below which a source line of an array is sought.
_FOLDER = str(Path(os.path.realpath(contexture.models.__path__[0])).parent)


class Memory(TypedDict):
    """Bytes of one device.

    Attributes:
        saved_activations: kept by the loop over layers for the backward pass; None without such a loop, or if no
            program fits: then they are part of the temporaries
        total: at the peak of a step
        available: for programs
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
    """Lower bounds on a step's time by the peak of each resource, with all iterations of loops counted.

    Attributes:
        links: between the devices of a slice, or of hosts
        slices: between several slices of TPUs, on the network of their hosts
    """

    compute: float
    memory: float
    links: float
    slices: NotRequired[float]


class Plan(TypedDict):
    """The needs of a run's training step on each device. A step that fits has the figures of a `CompiledPlan` too."""

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
    """A plan with the figures of the compiled program, for one step on one device.

    Attributes:
        flops: as compiled: recomputed products count twice
        model_flops: by the model's formula
        memory_traffic: bytes read from and written to memory
        collectives: messages: {kind: {"count": …, "bytes": …}}
        between_slices: what a device sends to other slices: {"count": …, "bytes": …}
    """

    largest_arrays: list[dict[str, object]]
    flops: float
    model_flops: float
    memory_traffic: float
    collectives: dict[str, dict[str, float]]
    between_slices: NotRequired[dict[str, float]]


class TimedPlan(CompiledPlan):
    """A compiled plan with the times that the chip's peaks allow.

    Attributes:
        step_ms: the roofline: the largest of `milliseconds`, as if the others overlapped with it
        mfu: model_flops in that time, as a share of the peak, by PaLM's convention (Chowdhery et al. 2022, appendix B):
            all pairs of attention count, and nothing twice. At most 1: kernels that skip what a causal mask hides could
            compute more of them than the peak allows
        hfu: what the program computes in that time, as a share of the peaks
        steps: of the run; None if it counts in epochs, which only the data can turn into steps
        days: for all steps, with a ramp of the batch (data.ramp-from) counted
        chip_hours: likewise
    """

    milliseconds: Milliseconds
    bound_by: str
    step_ms: float
    mfu: float
    hfu: float
    tokens_per_second: float
    steps: int | None
    days: float | None
    chip_hours: float | None


def shared_by(run: Run, topology: Topology) -> Mesh:
    """Returns the mesh of the devices. Raises ConfigError where it does not fit them, or they cannot share a batch."""
    mesh = meshes.build(run.mesh, list(topology.devices))
    meshes.check_batch(mesh, run.data.batch, run.optim.accumulate, "data.batch")
    meshes.check_context(run.mesh, run.model, run.data.length)
    return mesh


def plan(run: Run, topology: Topology, name: str = "") -> Plan | CompiledPlan | TimedPlan:
    """Returns the needs of training `run` on `topology`. name: of its recipe.

    Compiling a large model takes minutes. Raises ConfigError for a mesh that does not fit the devices, or a batch that
    they cannot share.
    """
    mesh = shared_by(run, topology)
    with meshes.use(mesh, run.model.dtype):
        meshes.check_compiler_options(run.mesh, mesh)
        attention = meshes.describe_attention(run.model, run.shares_rows)
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
    # It does not fit: the compiler's message is all there is, and no program could be read.
    if compiled is None:
        memory["temporaries"], memory["total"] = used
        return made
    program = parse(compiled.as_text())
    _count_memory(memory, compiled, program)
    # From the text of the program: XLA's own cost analysis counts loops once, and has none for GPUs.
    cost = program_costs.costs(program)
    flops = _flops(cost.flops, traced_flops(traced.jaxpr.jaxpr), mesh.size, topology)
    made["fits"] = memory["total"] <= memory["available"]
    of_model = family_of(run.model).training_flops(run.model, batch_sizes(run, run.data.batch))
    figures: CompiledPlan = {
        **made,
        "largest_arrays": [program_costs.as_record(row) for row in program_costs.largest_arrays(program, _FOLDER)],
        "flops": float(sum(flops.values())),
        "model_flops": of_model / mesh.size,
        "memory_traffic": cost.memory_bytes,
        "collectives": {kind: dataclasses.asdict(traffic) for kind, traffic in cost.collectives.items()},
    }
    if topology.slices > 1:
        figures["between_slices"] = dataclasses.asdict(cost.slices)
    return figures if topology.chip is None else _with_roofline(figures, cost, flops, run, topology)


def of_phases(run: Run) -> list[Run]:
    """Returns a run for each of its phases (data.phases), with its steps alone; the run itself where it has none."""
    if not run.data.phases:
        return [run]
    starts = [phase.first for phase in run.data.stretches]
    # The last one has what is left.
    ends = [*starts[1:], run.steps]
    return [
        dataclasses.replace(run.in_phase(first), steps=end - first) for first, end in zip(starts, ends, strict=True)
    ]


def _count_memory(memory: Memory, compiled: Any, program: Program) -> None:
    """Adds a compiled step's total memory, its temporaries and its saved activations."""
    # XLA's own account of one device: arguments, temporaries, results, and results that take the place of arguments.
    analysis: Any = compiled.memory_analysis()
    # The state is donated: results that lie in its memory (aliases) are not counted again.
    memory["total"] = (
        analysis.argument_size_in_bytes
        + analysis.temp_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
    )
    memory["temporaries"] = analysis.temp_size_in_bytes
    # They are among the temporaries. Not more than these: the estimate may count an array that shares its memory.
    if saved := program_costs.saved_activations(program):
        memory["saved_activations"] = min(int(saved), analysis.temp_size_in_bytes)
        memory["temporaries"] -= memory["saved_activations"]


def abstract_step(run: Run, mesh: Mesh) -> tuple[Any, State, dict[str, jax.ShapeDtypeStruct]]:
    """Returns (the jitted step that `train` runs, its state, its batch), the latter two as shapes with shardings."""
    # A task gets two labels: the real number comes from the examples, and plays no part in memory and time.
    # The very functions that `train` calls, on shapes: the plan is of the same program.
    model, objective = model_of(run, _LABELS if run.task.kind != "off" else ()), objective_of(run)
    _, shapes, shardings = create(model, run, mesh)
    state = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    # The batch by the fields and sizes that training uses: "i32 BL" → int32 [B, L], sharded like the real one.
    sizes, batch = batch_sizes(run, run.data.batch), {}
    for field, spec in batch_fields(run).items():
        kind, _, dims = spec.partition(" ")
        shape = tuple(sizes[letter] for letter in dims)
        batch[field] = jax.ShapeDtypeStruct(shape, _NUMBER_TYPES[kind], sharding=meshes.sharding(mesh, dims, shape))
    return train_step(model, objective, run, mesh).jitted, state, batch


def _compile(traced: Any, arguments: int) -> tuple[Any, tuple[int, int]]:
    """Returns (the compiled step, zeros), or (None, bytes of (its temporaries, everything)) if it fits no device.

    arguments: bytes of the state and the batch.
    """
    lowered = traced.lower()
    try:
        return lowered.compile(), (0, 0)
    except jax.errors.JaxRuntimeError as error:
        # Not an error of the plan's: how much memory is missing is the answer.
        if match := _OUT_OF_MEMORY.search(str(error)):
            # One of the two messages: whichever figure it has gives the other.
            total, unit, temporaries, its_unit = match.groups()
            if total:
                size = int(float(total) * _UNITS[unit])
                return None, (max(size - arguments, 0), size)
            size = int(float(temporaries) * _UNITS[its_unit])
            return None, (size, size + arguments)
        # Any other refusal of the compiler's, in its own first words.
        line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(f"the step does not compile for these devices: {line}") from error


@contextlib.contextmanager
def compiling_anew() -> Iterator[None]:
    """Within the block, disables jax's cache of compiled programs: a cached one comes without the partitioner's
    messages, and with the source lines of the day it was compiled."""
    # What the process had before comes back afterwards.
    enabled = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # jax decides once a process whether it has a cache
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def _memory(state: State, batch: dict[str, jax.ShapeDtypeStruct], available: float) -> Memory:
    # Exact parts, from shapes and shardings; what the program itself needs comes from the compiler.
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
    # By shards: an array that is cut over eight devices counts an eighth.
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _flops(compiled: Flops, traced: Flops, devices: int, topology: Topology) -> Flops:
    """Returns a device's products. On a GPU some are hidden in library calls: there the traced program counts, if it
    has more. Kernels count by their cost estimates."""
    # A Pallas kernel is one opaque call in the compiled program, which counts none of its products.
    kernels = traced.pop("kernel", 0.0)
    # The traced program is of all devices together, the compiled one of one device.
    shares = {dtype: count / devices for dtype, count in traced.items()}
    on_gpu = topology.chip is not None and topology.chip.platform == "gpu"
    # Whichever counts more: the compiled program also has what is recomputed.
    flops = shares if on_gpu and sum(shares.values()) > sum(compiled.values()) else dict(compiled)
    add(flops, {"bf16": kernels / devices})
    return flops


def _with_roofline(
    made: CompiledPlan, cost: program_costs.Costs, flops: Flops, run: Run, topology: Topology
) -> TimedPlan:
    chip, slices = topology.chip, topology.slices
    assert chip is not None
    # The roofline: each resource alone at its peak.
    milliseconds: Milliseconds = {
        "compute": 1e3 * chip.seconds(flops),
        "memory": 1e3 * cost.memory_bytes / chip.bandwidth,
        "links": 1e3 * cost.sent_bytes / chip.links,
    }
    if slices > 1:
        # A sum over N slices goes round their ring: all but one of N parts, twice.
        sent = cost.slices.bytes * 2 * (slices - 1) / slices
        milliseconds["slices"] = 1e3 * 8 * sent / (topology.slice_gbps * 1e9)
    # The resources work at the same time: the slowest one is the bound.
    step_ms, bound_by = max((value, name) for name, value in cast(dict[str, float], milliseconds).items())
    # Steps on a ramp have smaller batches, and count by their share of a whole one.
    whole_batches = run.data.examples_before(run.steps) / run.data.batch
    hours = whole_batches * step_ms / 3.6e6 if run.steps else None
    return {
        **made,
        "milliseconds": milliseconds,
        "bound_by": bound_by,
        "step_ms": step_ms,
        # An upper bound: model FLOPs over what the chip could do in the least time of the step.
        "mfu": min(made["model_flops"] / chip.bf16 / (step_ms / 1e3), 1.0),
        "hfu": milliseconds["compute"] / step_ms,
        "tokens_per_second": run.data.batch * run.data.length / (step_ms / 1e3),
        "steps": run.steps or None,
        "days": None if hours is None else hours / 24,
        "chip_hours": None if hours is None else hours * made["devices"],
    }


@contextlib.contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """Captures what is written to file descriptor 2, also by C code: yields a list of lines, filled at the end."""
    lines: list[str] = []
    # A file and no pipe: a full pipe would block the compiler, with nobody reading.
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            # Read after the descriptor is restored, so that an error of ours is seen.
            lines += file.read().decode(errors="replace").splitlines()
