"""Searches for meshes, microbatches and remat with which a run fits its devices, and ranks those that fit."""

import dataclasses
import logging
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass

import jax

from contexture.models.config import TransformerConfig
from contexture.models.families import family_of
from contexture.models.layers.remat import KEPT
from contexture.models.shapes import count
from contexture.models.sharding import CONTEXT_AXES
from contexture.train import mesh as meshes
from contexture.train.checkpoints.transfer import model_of
from contexture.train.errors import ConfigError
from contexture.train.objectives import batch_sizes
from contexture.train.plan.chips import GIB, Chip, grown, named_devices
from contexture.train.plan.plan import Plan, plan
from contexture.train.plan.topology import Topology, topology
from contexture.train.settings.run import Run
from contexture.train.step import create

logger = logging.getLogger(__name__)
MAX_PROGRAMS = 8
"""Maximum number of programs to compile: one may take minutes."""
ENOUGH = 3
"""Number of plans that fit after which the search ends."""
# Remat policy → time of a step relative to one without recomputation. full: a second forward pass, 4/3 of 3 passes.
_SLOWDOWN = {"none": 1.0, "dots": 1.02, "full": 4 / 3}
# Of the numbers that a layer keeps (KEPT), those that tensor parallelism does not divide: the inputs and results of
# attention and feed-forward part.
_WHOLE = {"none": 6, "dots": 2, "full": 1}
DOUBLINGS = 3
"""Maximum number of times that `nearest` doubles the devices."""
ATTENTIONS = ("pallas", "cudnn", "reference")
_ROOM = 0.92
"""Fraction of the memory that an estimate may fill, since the compiler needs some for itself."""


@dataclass(frozen=True)
class Candidate:
    """A way to train the run. seconds: the estimated time of a step, by which candidates are ordered."""

    run: Run
    seconds: float


def suggest(run: Run, devices: Topology, name: str = "") -> list[Plan]:
    """Returns the compiled plans of ways to train `run`: those that fit first, the fastest first.

    Candidates differ in mesh, microbatches (optim.accumulate) and remat; the batch stays, or is rounded to the next one
    that the mesh can share. Their memory and time are estimated; the best are compiled, MAX_PROGRAMS at most. One that
    does not fit is tried again in twice as many parts. The best is compiled with every other attention kernel too.
    """
    if run.data.ramp_from or run.data.phases:
        option = "--data.ramp-from" if run.data.ramp_from else "--data.phases"
        raise ConfigError(f"--suggest plans one size of batch; leave {option} out")
    plans: list[Plan] = []
    done: set[tuple[object, ...]] = set()
    for candidate in sorted(candidates(run, devices), key=lambda candidate: candidate.seconds):
        way: Run | None = candidate.run
        mesh = dataclasses.astuple(way.mesh)
        # One number of parts for each mesh and remat; more parts are tried only if it does not fit.
        if (mesh, getattr(way.model, "remat", "")) in done:
            continue
        done.add((mesh, getattr(way.model, "remat", "")))
        while way is not None and len(plans) < MAX_PROGRAMS:
            plans.append(_compiled(way, devices, name))
            way = None if plans[-1]["fits"] else _smaller(way, devices)
        if len(plans) >= MAX_PROGRAMS or sum(made["fits"] for made in plans) >= ENOUGH:
            break
    if not plans:
        raise ConfigError(
            f"no mesh of {devices.name} can share a batch of {run.data.batch} sequences and hold the "
            "model; give more devices"
        )
    # Kernels differ in memory and traffic in ways that no estimate covers: the best plan is compiled with each.
    best = min(plans, key=_rank)
    if best["fits"] and isinstance(run.model, TransformerConfig) and run.model.attention == "auto":
        for attention in ATTENTIONS:
            way = _planned(run, best, attention)
            used = best["attention"].partition(":")[0]
            if attention != used and _is_possible(way, devices) and len(plans) < MAX_PROGRAMS:
                plans.append(_compiled(way, devices, name))
    return sorted(plans, key=_rank)


def nearest(run: Run, devices: Topology, name: str = "") -> Plan | None:
    """Returns the plan of the nearest way to train `run` that fits: on the same devices by mesh, microbatches and
    remat, else on two, four or eight times as many. None if there is none.
    """
    tried = 0
    failed: list[tuple[int, ...]] = []
    for doublings in range(DOUBLINGS + 1):
        if doublings:
            if devices.chip is None:
                return None
            # Larger slices, and as many of them.
            several, _, one = devices.name.rpartition("*")
            chip, sizes = named_devices(one)
            larger = f"{chip}:{'x'.join(map(str, grown(chip, sizes)))}"
            try:
                devices = topology(f"{several}*{larger}" if several else larger, devices.slice_gbps)
            except ConfigError:  # there is no larger slice of that form
                return None
        # Every compilation counts towards MAX_PROGRAMS, so ways that cannot do better than failed ones are left out.
        for candidate in sorted(candidates(run, devices), key=lambda candidate: candidate.seconds):
            way: Run | None = candidate.run
            while way is not None:
                saves = _saves(way)
                if any(all(map(operator.le, saves, others)) for others in failed):
                    break  # a way that divides the memory at least as finely did not fit
                if tried == MAX_PROGRAMS:
                    return None
                tried += 1
                made = _compiled(way, devices, name)
                if made["fits"]:
                    return made
                failed.append(saves)
                way = _smaller(way, devices)
    return None


def _saves(run: Run) -> tuple[int, ...]:
    """Returns the divisors of a device's memory, each one the larger the less is needed: devices that share the state,
    devices that share a batch, its parts, remat."""
    mesh, remat = run.mesh, getattr(run.model, "remat", "")
    sharing = mesh.data * mesh.fsdp * mesh.context
    return mesh.fsdp * mesh.tensor, sharing * mesh.tensor, run.optim.accumulate, [*_SLOWDOWN, ""].index(remat)


def _is_possible(run: Run, topology: Topology) -> bool:
    """Returns whether the devices support the attention kernel that the model asks for."""
    # Asked before compiling: a kernel of another platform would only give an error.
    try:
        with jax.set_mesh(meshes.build(run.mesh, list(topology.devices))):
            meshes.describe_attention(run.model, run.shares_rows)
    except ConfigError:
        return False
    return True


def _rank(made: Plan) -> tuple[bool, float]:
    return not made["fits"], made.get("step_ms", math.inf)


def _planned(run: Run, made: Plan, attention: str) -> Run:
    """Returns the run of a plan, with another attention kernel."""
    model = dataclasses.replace(run.model, remat=made["remat"], unroll=1, attention=attention)
    return dataclasses.replace(
        run,
        model=model,
        mesh=dataclasses.replace(run.mesh, **made["mesh"]),
        data=dataclasses.replace(run.data, batch=made["batch"], ramp_from=0),
        optim=dataclasses.replace(run.optim, accumulate=made["accumulate"]),
    )


def _compiled(run: Run, topology: Topology, name: str) -> Plan:
    sizes = {axis: getattr(run.mesh, axis) for axis in CONTEXT_AXES}
    mesh = " × ".join(f"{axis} {size}" for axis, size in sizes.items() if axis != "context" or size > 1)
    layers = (
        f", remat {run.model.remat}, attention {run.model.attention}"
        if isinstance(run.model, TransformerConfig)
        else ""
    )
    logger.info(f"compiling {mesh}, batch {run.data.batch} in {run.optim.accumulate}{layers}")
    made = plan(run, topology, name)
    step = f", {made['step_ms']:.0f} ms a step" if "step_ms" in made else ""
    fits, memory = "fits" if made["fits"] else "does not fit", made["bytes_per_device"]
    logger.info(
        f"{fits}: {memory['total'] / GIB:.1f} of {memory['available'] / GIB:.1f} GiB{step}; "
        f"compiled in {made['compile_seconds']:.0f} s"
    )
    return made


def _smaller(run: Run, topology: Topology) -> Run | None:
    """Returns the run in twice as many parts; None if a part would have less than one sequence for each device."""
    parts = 2 * run.optim.accumulate
    if run.data.batch % (parts * run.mesh.data * run.mesh.fsdp):
        return None
    return dataclasses.replace(run, optim=dataclasses.replace(run.optim, accumulate=parts))


def candidates(run: Run, topology: Topology) -> Iterator[Candidate]:
    """Yields, for every mesh and remat, the run with the fewest microbatches that should fit by the estimate."""
    # Sequences are cut as the user says: no other number of parts is tried.
    for data, fsdp, tensor in _shapes(run, len(topology.devices) // run.mesh.context):
        sharing = data * fsdp
        # The nearest batch that these devices can share.
        batch = max(round(run.data.batch / sharing), 1) * sharing
        config = dataclasses.replace(run.mesh, data=data, fsdp=fsdp, tensor=tensor)
        try:
            mesh = meshes.build(config, list(topology.devices))
        except ConfigError:
            continue
        placed = dataclasses.replace(run, mesh=config, data=dataclasses.replace(run.data, batch=batch, ramp_from=0))
        with jax.set_mesh(mesh):
            _, shapes, shardings = create(model_of(placed, ()), placed, mesh)
        # Parameters and moments of one device, exactly: the shapes and shardings of the real state.
        state = sum(
            math.prod(s.shard_shape(x.shape)) * x.dtype.itemsize
            for x, s in zip(jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True)
        )
        parameters = count(shapes.params)
        policies = _SLOWDOWN if isinstance(run.model, TransformerConfig) else {"": 1.0}
        for remat, slowdown in policies.items():
            # A sequence's share of the parts doubles as long as the estimate is too large.
            per_device = batch // sharing
            for parts in (2**n for n in range(per_device.bit_length()) if per_device % 2**n == 0):
                activations = _activations(placed, per_device // parts, remat)
                # A third more than the state for the gradients: as large as the parameters, which Adam's state holds
                # three times.
                if state * 4 / 3 + activations <= _ROOM * topology.memory:
                    way = _with(placed, parts, remat)
                    yield Candidate(way, _seconds(way, parameters, slowdown, topology.chip))
                    break


def _shapes(run: Run, devices: int) -> Iterator[tuple[int, int, int]]:
    # tensor must divide the devices and the heads; more than 16 parts are not tried.
    heads = getattr(run.model, "heads", 1)
    for tensor in (size for size in (1, 2, 4, 8, 16) if devices % size == 0 and heads % size == 0):
        rest = devices // tensor
        for fsdp in (size for size in range(1, rest + 1) if rest % size == 0):
            yield rest // fsdp, fsdp, tensor


def _with(run: Run, parts: int, remat: str) -> Run:
    model = dataclasses.replace(run.model, remat=remat, unroll=1) if remat else run.model
    return dataclasses.replace(run, model=model, optim=dataclasses.replace(run.optim, accumulate=parts))


def _activations(run: Run, sequences: int, remat: str) -> float:
    """Returns about how many bytes of activations a device keeps for its share of a microbatch."""
    model, tokens, tensor = run.model, sequences * run.data.length // run.mesh.context, run.mesh.tensor
    if not isinstance(model, TransformerConfig):
        return 0.0
    size = 2 if model.dtype == "bfloat16" else 4
    # Numbers a token and layer, in widths of the model; on top, the temporaries of the one layer that is computed.
    kept = _WHOLE[remat] + (KEPT[remat] - _WHOLE[remat]) / tensor
    one_layer = 40.0 / tensor
    return tokens * model.hidden * size * (kept * model.layers + one_layer)


def _seconds(run: Run, parameters: int, slowdown: float, chip: Chip | None) -> float:
    """Returns about how long a step takes: the longer of products and messages, plus a tenth of the shorter, which does
    not overlap."""
    if chip is None:
        return slowdown
    mesh, parts = run.mesh, run.optim.accumulate
    devices = mesh.data * mesh.fsdp * mesh.context * mesh.tensor
    flops = family_of(run.model).training_flops(run.model, batch_sizes(run, run.data.batch))
    compute = slowdown * flops / devices / chip.bf16
    # Bytes that a device sends, by the axes of the mesh: gradients over data, layers and gradients over fsdp,
    # activations over tensor.
    own = parameters * 4 / mesh.tensor
    sent = 2 * own / mesh.fsdp if mesh.data * mesh.context > 1 else 0.0  # gradients are summed over copies
    if mesh.fsdp > 1:
        sent += parts * (own + own / 2 * (2 if slowdown < 1.2 else 3))  # gradients, and layers gathered in bfloat16
    if mesh.tensor > 1 and isinstance(run.model, TransformerConfig):
        tokens = run.data.batch // (mesh.data * mesh.fsdp) * run.data.length // mesh.context
        sent += 2 * 4 * run.model.layers * tokens * run.model.hidden * 2  # activations are summed four times a layer
    links = sent / chip.links
    return max(compute, links) + 0.1 * min(compute, links)
