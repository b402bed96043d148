"""The costs of a compiled program on a device: products, memory traffic, messages, and its large arrays.

Instructions in loops count as often as they run.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from contexture.train.plan.flops import Flops, add, product_flops
from contexture.train.plan.hlo import Array, Computation, Instruction, Program

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all", "ragged-all-to-all",
               "collective-broadcast")  # fmt: skip
_FREE = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "conditional", "call", "after-all",
         "iota", "partition-id", "replica-id", "opt-barrier", "optimization-barrier"}  # fmt: skip
_MEGASCALE = "xla_megascale_runtime"
"""What hands the arrays that are sent to other slices of TPUs over to the hosts' network."""
_SLICES = ("dynamic-slice", "slice", "gather")
# Fusions within fusions that are looked into; deeper ones count as read whole.
_MAX_NESTING = 4


@dataclass
class Traffic:
    """Messages of one kind: how many, and their bytes."""

    count: float = 0.0
    bytes: float = 0.0


@dataclass
class Costs:
    """The costs of one run of a program on one device."""

    flops: Flops = field(default_factory=dict)
    memory_bytes: float = 0.0
    slices: Traffic = field(default_factory=Traffic)
    """What a device sends to other slices of TPUs."""
    collectives: dict[str, Traffic] = field(default_factory=lambda: defaultdict(Traffic))

    @property
    def sent_bytes(self) -> float:
        """Bytes that a device sends: an all-reduce goes round twice."""
        return sum(traffic.bytes * (2 if kind == "all-reduce" else 1) for kind, traffic in self.collectives.items())


def costs(program: Program) -> Costs:
    """Returns the costs of a program."""
    return _Walk(program).total


class _Walk:
    """Sums instruction costs, each times its execution count."""

    def __init__(self, program: Program) -> None:
        self.program, self.total = program, Costs()
        # Messages counted already, by channel and loops; products by text, since their parsing takes time.
        self._sent: set[tuple[str, str]] = set()
        self._products: dict[str, Flops] = {}
        self._visit(program.entry, 1.0, "", fused=False)

    def _visit(self, name: str, times: float, loops: str, fused: bool) -> None:
        computation = self.program.computation(name)
        for instruction in computation.values():
            if instruction.opcode in ("dot", "convolution"):
                if instruction.text not in self._products:
                    self._products[instruction.text] = product_flops(instruction, computation)
                add(self.total.flops, self._products[instruction.text], times)
            if instruction.opcode == "send" and _MEGASCALE in instruction.text:
                self.total.slices.count += times
                # The result is the array, a context and a token.
                self.total.slices.bytes += times * instruction.result[0].bytes
            if instruction.operation in COLLECTIVES:
                self._send(instruction, computation, name, times, loops)
            if not fused:
                count = times * traffic(instruction, computation, self.program)
                self.total.memory_bytes += count
            for inner, more, stays_fused in self._called(instruction):
                inside = f"{loops}/{instruction.name}" if instruction.opcode == "while" else loops
                self._visit(inner, times * more, inside, fused or stays_fused)

    def _called(self, instruction: Instruction) -> Iterator[tuple[str, float, bool]]:
        """Yields (computation, times that it runs, whether it is a fusion, whose inner arrays never reach memory)."""
        # XLA's own cost analysis counts the body of a loop once.
        if instruction.opcode == "while":
            yield instruction.attribute("body"), self.program.trip_count(instruction), False
        elif instruction.opcode == "fusion":
            yield instruction.attribute("calls"), 1.0, True
        elif instruction.opcode == "call":
            yield instruction.attribute("to_apply"), 1.0, False
        elif instruction.opcode == "conditional":
            # One branch runs; the last one is taken.
            names = instruction.braces("branch_computations") or instruction.attribute("true_computation")
            yield names.split(",")[-1].strip().lstrip("%"), 1.0, False
        elif instruction.is_start and "calls=" in instruction.text:
            yield instruction.attribute("calls"), 1.0, False

    def _send(self, instruction: Instruction, computation: Computation, name: str, times: float, loops: str) -> None:
        kind = instruction.operation
        # A message that is spread over several fusions has one channel, and counts as often as its first part runs: the
        # other parts may be in a loop that it overlaps with.
        loops = "" if _is_on_its_way(instruction) else loops
        key = (instruction.attribute("channel_id") or f"{name}/{instruction.name}", loops)
        # A further part of a message that is counted already.
        if key in self._sent:
            return
        self._sent.add(key)
        # The compiler for TPUs writes a reduce-scatter as a fusion of an all-reduce and a slice of its result.
        if kind == "all-reduce" and name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        # Bytes of a message: what is received for gathers, what is given for the others.
        given = sum(
            a.bytes for operand in instruction.operands if operand in computation for a in computation[operand].result
        )
        received = sum(a.bytes for a in instruction.result)
        if instruction.is_start and kind == "all-gather":  # its result holds its operands too
            received -= given
        size = received if kind in ("all-gather", "all-to-all", "collective-broadcast") else given
        self.total.collectives[kind].count += times
        self.total.collectives[kind].bytes += times * size


def traffic(instruction: Instruction, computation: Computation, program: Program) -> float:
    """Returns about how many bytes of memory an instruction reads and writes.

    A slice of a large array counts as a slice. A kernel counts each of its arrays once.
    """
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith("-done"):
        return 0.0
    # Instructions that touch only a part of an array, by what they read and write: twice a slice, for one.
    operands = [computation[name].result for name in instruction.operands if name in computation]
    if opcode in _SLICES:
        return 2 * _in_memory(instruction.result)
    if opcode == "dynamic-update-slice":
        return 2 * (_in_memory(operands[1]) if len(operands) > 1 else 0.0)
    if opcode == "scatter":
        return 3 * (_in_memory(operands[-1]) if operands else 0.0)
    if (
        opcode in ("slice-start", "async-start") and len(instruction.result) > 1
    ):  # a part, fetched into fast memory ahead of its use
        return instruction.result[1].bytes * sum(a.in_memory for a in instruction.result[:2])
    if instruction.is_start and opcode != "async-start":
        return _in_memory(instruction.result[:2])
    # Fusions and kernels with a body: what their body reads of each operand.
    body = program.computation(instruction.attribute("calls"))
    if body and opcode in ("fusion", "custom-call", "async-start"):
        return _fusion(instruction, computation, body, program)
    return sum(map(_in_memory, operands)) + _in_memory(instruction.result)


def _fusion(instruction: Instruction, computation: Computation, body: Computation, program: Program) -> float:
    # Reads: each operand as a whole, or the slices that the body takes of it if these are less.
    total = 0.0
    for number, name in enumerate(instruction.operands):
        if name in computation:
            whole, part = _in_memory(computation[name].result), _read_of(body, number, program)
            total += whole if part is None else min(whole, part)
    # Writes: the results, unless they are updates in place of an operand.
    root = next((i for i in body.values() if i.is_root), None)
    if root is None:
        return total
    results = [body[name] for name in root.operands if name in body] if root.opcode == "tuple" else [root]
    for result, array in zip(results, instruction.result, strict=False):
        # Handed through unchanged, or still travelling: not written here.
        if result.opcode == "parameter" or _is_on_its_way(result):
            continue
        writer, inner = _writer(result, body, program)
        # Updates in place write only the changed part; rows that are added to are read as well.
        place, times = {"dynamic-update-slice": (1, 1), "scatter": (-1, 2)}.get(writer.opcode, (0, 0))
        if times and writer.operands[place] in inner:
            update = inner[writer.operands[place]].result
            total += min(_in_memory((array,)), times * sum(a.bytes for a in update))
        else:
            total += _in_memory((array,))
    return total


def _is_on_its_way(instruction: Instruction) -> bool:
    """Returns whether an instruction is a part of an asynchronous message that further instructions continue."""
    return instruction.operation in COLLECTIVES and "chain_id" in instruction.text


def _writer(result: Instruction, body: Computation, program: Program) -> tuple[Instruction, Computation]:
    """Returns the instruction that makes a result, through nested fusions and reshapes, and its computation."""
    while True:
        if result.opcode == "bitcast" and result.operands and result.operands[0] in body:
            result = body[result.operands[0]]
        elif result.opcode == "fusion":
            inner = program.computation(result.attribute("calls"))
            root = next((i for i in inner.values() if i.is_root), None)
            if root is None:
                return result, body
            result, body = root, inner
        else:
            return result, body


def _read_of(body: Computation, number: int, program: Program, nesting: int = 0) -> float | None:
    """Returns the bytes that a fusion reads of its operand `number`, if only slices of it; None if it reads it all."""
    names = [i.name for i in body.values() if i.opcode == "parameter" and f"parameter({number})" in i.text]
    if not names:
        return None
    # Follows the parameter through reshapes and nested fusions to everything that uses it.
    total, is_used = 0.0, False
    while names:
        name = names.pop()
        users = (
            (user, place) for user in body.values() for place, operand in enumerate(user.operands) if operand == name
        )
        for user, place in users:
            is_used = True
            if user.opcode == "bitcast":
                names.append(user.name)
            elif user.opcode in _SLICES and place == 0:
                total += sum(a.bytes for a in user.result)
            elif user.opcode == "fusion" and nesting < _MAX_NESTING:
                inner = program.computation(user.attribute("calls"))
                part = _read_of(inner, place, program, nesting + 1)
                if part is None:
                    return None
                total += part
            elif user.opcode in ("dynamic-update-slice", "scatter") and place == 0:
                continue  # changed in place: the rest is not read
            elif user.opcode != "tuple" and not _is_on_its_way(user):
                return None
    # An operand that nothing uses counts as a whole, to be safe.
    return total if is_used else None


def _in_memory(arrays: tuple[Array, ...]) -> float:
    return sum(a.bytes for a in arrays if a.in_memory)


@dataclass(frozen=True)
class LargeArray:
    """An array that a program makes. source: the source line that makes it, "models/bert.py:88"; "" if unknown."""

    array: Array
    opcode: str
    source: str


def largest_arrays(program: Program, folder: str, count: int = 5) -> list[LargeArray]:
    """Returns the largest arrays that a program makes in memory, each (shape, source line) once."""
    rows: dict[tuple[str, str], LargeArray] = {}
    # Arrays inside fusions never exist in memory.
    fused = {i.attribute("calls") for c in program.computations.values() for i in c.values() if i.opcode == "fusion"}
    for name, computation in program.computations.items():
        if name in fused:
            continue
        for instruction in computation.values():
            if instruction.opcode in _FREE or instruction.opcode.endswith("-done"):
                continue
            source = program.source(instruction, folder)
            # A layer's array appears in forward and backward pass: one row for its shape and line is enough.
            for array in instruction.result:
                if array.in_memory:
                    rows.setdefault((str(array), source), LargeArray(array, instruction.opcode, source))
    return sorted(rows.values(), key=lambda row: -row.array.bytes)[:count]


def saved_activations(program: Program) -> float | None:
    """Returns the bytes of the arrays that one loop stacks, a slice each iteration, and a later loop reads: these are
    the activations that the forward pass over the layers keeps for the backward pass.

    None without such arrays: if the layers are unrolled, kept activations look like any other array.
    """
    total = 0.0
    for computation in program.computations.values():
        # The forward pass is one loop over the layers, the backward pass a later one in the same computation.
        loops = [i for i in computation.values() if i.opcode == "while"]
        if len(loops) < 2:
            continue
        stacked: dict[str, Array] = {}
        for number, loop in enumerate(loops):
            # A loop's operand is a tuple: which of its values come from an earlier loop's stacks?
            given = computation.get(loop.operands[0])
            for name in given.operands if given is not None else ():
                if (origin := _origin(name, computation)) in stacked:
                    total += stacked.pop(origin).bytes
            if number < len(loops) - 1:
                stacked |= {f"{loop.name}[{k}]": array for k, array in _stacked_by(loop, program)}
    return total or None


def _stacked_by(loop: Instruction, program: Program) -> Iterator[tuple[int, Array]]:
    """Yields (index in the result, array) of arrays whose first dim is the trip count and that the body changes."""
    body, turns = program.computation(loop.attribute("body")), program.trip_count(loop)
    root = next((i for i in body.values() if i.is_root), None)
    # A body results in the tuple of its next inputs: position k is the same array in every iteration.
    if root is None or root.opcode != "tuple":
        return
    for number, (name, array) in enumerate(zip(root.operands, loop.result, strict=False)):
        if len(array.shape) > 1 and array.shape[0] == turns and array.in_memory and not _is_handed_on(name, body):
            yield number, array


def _is_handed_on(name: str, body: Computation) -> bool:
    """Returns whether a value is an input of the loop's body, unchanged."""
    if name not in body or body[name].opcode != "get-tuple-element":
        return False
    given = body[name].operands[0]
    return given in body and body[given].opcode == "parameter"


def _origin(name: str, computation: Computation) -> str:
    """Returns "loop[index]" if a value is a loop's result, traced back through copies and reshapes; else its name."""
    while name in computation and computation[name].opcode in ("copy", "bitcast", "copy-done", "copy-start"):
        name = computation[name].operands[0]
    if name in computation and computation[name].opcode == "get-tuple-element":
        instruction = computation[name]
        return f"{instruction.operands[0]}[{instruction.attribute('index')}]"
    return name


def as_record(row: LargeArray) -> dict[str, object]:
    """Returns a large array for JSON."""
    return {"bytes": int(row.array.bytes), "array": str(row.array), "opcode": row.opcode, "source": row.source}
