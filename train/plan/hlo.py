"""Reads a compiled program's text (XLA's HLO): computations, their instructions, arrays, loops and source lines."""

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

ITEM_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1.0),
    **dict.fromkeys(("bf16", "f16", "s16", "u16"), 2.0),
    **dict.fromkeys(("f32", "s32", "u32"), 4.0),
    **dict.fromkeys(("f64", "s64", "u64", "c64"), 8.0),
    **dict.fromkeys(("s4", "u4"), 0.5),
}
# `bf16[8,128]{1,0:T(8,128)S(1)}`: type, dims, layout. Longer names come first, so that none hides another.
_ARRAY = re.compile(rf"\b({'|'.join(sorted(ITEM_BYTES, key=len, reverse=True))})\[([\d,]*)\](\{{[^}}]*\}})?")
_COMPUTATION = re.compile(r"^(?!HloModule)(ENTRY\s+)?%?([\w.\-]+)\s.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(ROOT\s+)?%?([\w.\-]+) = ")
# The word before the first parenthesis: `fusion(`, `all-gather-start(`.
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")
_TABLE_LINE = re.compile(r"^(\d+) (.*)$")
_NUMBERS = re.compile(r"(\w+)=(\d+)")


@dataclass(frozen=True)
class Array:
    """An array of a compiled program, as one device holds it. in_memory: it is in the device's main memory, not in a
    core's fast memory or on the host."""

    dtype: str
    shape: tuple[int, ...]
    in_memory: bool = True

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> float:
        return self.size * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Instruction:
    """One instruction: `name = result opcode(operands), attributes`."""

    name: str
    opcode: str
    result: tuple[Array, ...]
    operands: tuple[str, ...]
    text: str
    """Everything after the result's shape."""
    is_root: bool

    @functools.cached_property
    def is_start(self) -> bool:
        """Whether it begins an asynchronous operation, which a -done instruction ends."""
        return self.opcode.endswith("-start")

    @property
    def operation(self) -> str:
        """The opcode without -start."""
        return self.opcode.removesuffix("-start")

    def attribute(self, name: str) -> str:
        """Returns the computation, or other word, after `name=`; "" without it."""
        match = re.search(rf"\b{name}=%?([\w.\-]+)", self.text)
        return match.group(1) if match else ""

    def braces(self, name: str) -> str:
        """Returns the text in `name={…}`; "" without it."""
        match = re.search(rf"\b{name}=\{{([^}}]*)\}}", self.text)
        return match.group(1) if match else ""

    def quoted(self, name: str) -> str:
        """Returns the text in `name="…"`; "" without it."""
        match = re.search(rf'\b{name}="([^"]*)"', self.text)
        return match.group(1) if match else ""


Computation = Mapping[str, Instruction]
"""The instructions of a computation by name, in their order."""


@dataclass(frozen=True)
class Program:
    """A compiled program."""

    computations: Mapping[str, Computation]
    entry: str
    frames: Mapping[int, tuple[str, int, int]] = field(default_factory=dict)
    """(file, line, parent) of each stack frame."""

    def computation(self, name: str) -> Computation:
        return self.computations.get(name, {})

    def trip_count(self, loop: Instruction) -> int:
        """Returns how often the body of a `while` runs; 1 if that is unknown."""
        if match := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.text):
            return int(match.group(1))
        # Not written down: a scan's condition compares its counter with a constant, the largest one in it.
        constants = [
            int(number)
            for instruction in self.computation(loop.attribute("condition")).values()
            if instruction.opcode == "constant"
            for number in re.findall(r"constant\((\d+)\)", instruction.text)
        ]
        # A product that is computed while its factor travels round the devices: its body holds two iterations.
        turns = 2 if "windowed_dot_general" in loop.attribute("body") else 1
        # A loop that counts otherwise, down or by twos, is taken to run once at least.
        return max((max(constants) - self._first_count(loop)) // turns, 1) if constants else 1

    def _first_count(self, loop: Instruction) -> int:
        """Returns the number that the counter of a `while` begins with: 1 where the first iteration was peeled off, so
        that a message overlaps with the next one."""
        condition = self.computation(loop.attribute("condition"))
        around = next((c for c in self.computations.values() if c.get(loop.name) is loop), {})
        given = around.get(loop.operands[0]) if loop.operands else None
        # The counter is the value of the loop's state that the condition compares.
        root = next((i for i in condition.values() if i.is_root), None)
        compared = [condition[name] for name in (root.operands if root else ()) if name in condition]
        counter = next((i for i in compared if i.opcode == "get-tuple-element"), None)
        if given is None or given.opcode != "tuple" or counter is None:
            return 0
        name = given.operands[int(counter.attribute("index"))]
        while name in around and around[name].opcode in ("copy", "bitcast"):
            name = around[name].operands[0]
        first = around.get(name)
        match = re.search(r"constant\((\d+)\)", first.text) if first is not None else None
        return int(match[1]) if match else 0

    def source(self, instruction: Instruction, folder: str) -> str:
        """Returns the source line under `folder` that made an instruction, "models/bert.py:88"; "" if unknown."""
        # From the innermost frame outward: past frames of jax and flax to the first one in our own code.
        number = int(instruction.attribute("stack_frame_id") or 0)
        # Parents lead outward to the caller; an unknown number ends the search.
        while number in self.frames:
            file, line, parent = self.frames[number]
            if file.startswith(folder + "/") and "/site-packages/" not in file.removeprefix(folder):
                return f"{file.removeprefix(folder + '/')}:{line}"
            number = parent
        return ""


def parse(text: str) -> Program:
    """Returns the program that a compiled step's `as_text()` describes."""
    computations: dict[str, dict[str, Instruction]] = {}
    tables: dict[str, dict[int, str]] = {}
    entry, current, table = "", None, None
    # Line by line: tables of source lines first, then computations, `name (…) {`, instructions, `}`.
    for line in text.splitlines():
        if current is not None:
            if line.startswith("}"):
                current = None
            elif instruction := _instruction(line):
                current[instruction.name] = instruction
        elif match := _COMPUTATION.match(line):
            current = computations.setdefault(match.group(2), {})
            entry = match.group(2) if match.group(1) else entry
        # Instructions refer to frames, frames to locations, locations to files, all by number.
        elif line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = tables.setdefault(line, {})
        elif table is not None and (match := _TABLE_LINE.match(line)):
            table[int(match.group(1))] = match.group(2)
    return Program(computations, entry, dict(_frames(tables)))


def _frames(tables: dict[str, dict[int, str]]) -> Iterator[tuple[int, tuple[str, int, int]]]:
    # StackFrames: {file_location_id=7 parent_frame_id=3}; FileLocations: {file_name_id=2 … line=88 …}.
    files, locations = tables.get("FileNames", {}), tables.get("FileLocations", {})
    for number, line in tables.get("StackFrames", {}).items():
        frame = {name: int(value) for name, value in _NUMBERS.findall(line)}
        place = {name: int(value) for name, value in _NUMBERS.findall(locations.get(frame["file_location_id"], ""))}
        if place:
            # Parents are counted from 1 more than frames are: 1 is none.
            parent = frame.get("parent_frame_id", 1) - 1
            yield number, (files[place["file_name_id"]].strip('"'), place["line"], parent)


def _instruction(line: str) -> Instruction | None:
    head = _INSTRUCTION.match(line)
    if not head:
        return None
    # `name = result opcode(operands), attributes`: cut from the left, parentheses matched by hand.
    rest = line[head.end() :]
    # The result is one array, or a tuple in parentheses.
    end = _closing(rest) + 1 if rest.startswith("(") else rest.find(" ")
    result, rest = rest[:end], rest[end:]
    # A line that is no instruction (a comment, an attribute of its own) is left out.
    opcode = _OPCODE.match(rest)
    if not opcode:
        return None
    # The operands are between the opcode's parentheses; attributes follow, and may contain commas too.
    start = opcode.end() - 1
    operands = _split(rest[start + 1 : start + _closing(rest[start:])])
    # An operand may have its shape before its name.
    names = tuple(operand.split("%")[-1].split(" ")[-1] for operand in operands)
    return Instruction(head.group(2), opcode.group(1), arrays(result), names, rest, bool(head.group(1)))


def arrays(text: str) -> tuple[Array, ...]:
    """Returns the arrays of a shape given as text; a tuple's in order."""
    result = []
    for dtype, dims, layout in _ARRAY.findall(text):
        # `S(n)` in the layout names the memory: 0, or none, is the device's main memory.
        space = _MEMORY_SPACE.search(layout)
        shape = tuple(int(size) for size in dims.split(",") if size)
        result.append(Array(dtype, shape, space is None or space.group(1) == "0"))
    return tuple(result)


def _closing(text: str) -> int:
    """Returns where the parenthesis that text begins with is closed."""
    # Shapes and attributes nest parentheses, brackets and braces; no regular expression counts them.
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            return place
    return len(text) - 1


def _split(text: str) -> list[str]:
    """Returns the parts between the commas of a list that are in no parentheses."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]
