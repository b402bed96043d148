"""Plans a recipe and looks at the compiled program: `python -m tests.helpers.compile.recipe RECIPE --topology …` prints
the findings as a JSON line."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

from contexture.models.config import ModelConfig
from contexture.train.plan import plan as planning
from contexture.train.plan.costs import COLLECTIVES
from contexture.train.plan.hlo import Array, Computation, Instruction, Program, parse
from contexture.train.plan.topology import Topology
from contexture.train.settings.run import Run

_CALLED = ("body", "calls", "to_apply")


def findings(run: Run, topology: Topology) -> dict[str, Any]:
    """Plans a run: {"fits", "warnings", "loops": how many, "squares", "tables_in_loops": what should not be there}."""
    programs: list[Program] = []

    def kept(text: str) -> Program:
        programs.append(parse(text))
        return programs[-1]

    with mock.patch.object(planning, "parse", kept):
        made = planning.plan(run, topology)
    (program,) = programs
    loops = [i for c in program.computations.values() for i in c.values() if i.opcode == "while"]
    # A microbatch reads the table as a step does: the loop over microbatches is no loop over layers or positions.
    outer = run.optim.accumulate > 1
    return {
        "fits": made["fits"],
        "warnings": made["warnings"],
        "loops": len(loops),
        "squares": squares(program, run.data.length),
        "tables_in_loops": tables_in_loops(program, table_shapes(run.model, made["mesh"]["tensor"]), outer),
    }


def table_shapes(model: ModelConfig, tensor: int) -> set[tuple[int, int]]:
    """The (words, width) of the vocabulary's table that fsdp has gathered: whole, and a device's part of it."""
    width = getattr(model, "hidden", 0) or getattr(model, "projection", 0)
    part = -(-model.vocab // tensor)
    return {(words, width) for words in (model.vocab, part, part * tensor)}


def squares(program: Program, length: int) -> list[str]:
    """The arrays with two dims of the text's length."""
    arrays = (a for c in program.computations.values() for i in c.values() for a in i.result)
    return sorted({str(array) for array in arrays if array.shape.count(length) > 1})


def tables_in_loops(program: Program, tables: set[tuple[int, int]], in_outer_loop: bool = False) -> list[str]:
    """The messages of a table with one of these shapes, (words, width), and the gathers from it, that a loop repeats.
    Other dims may stand around these two. in_outer_loop: of loops that another loop repeats."""
    bodies = [i.attribute("body") for i in _loops(program, program.entry)]
    if in_outer_loop:
        bodies = [i.attribute("body") for body in bodies for i in _loops(program, body)]
    lines = set()
    for body in bodies:
        for name in _reached(program, body):
            computation = program.computation(name)
            for instruction in computation.values():
                arrays = _moved(instruction, computation)
                lines |= {f"{instruction.opcode} {a}" for a in arrays if any(set(t) <= set(a.shape) for t in tables)}
    return sorted(lines)


def _moved(instruction: Instruction, computation: Computation) -> list[Array]:
    operands = [computation[name].result for name in instruction.operands if name in computation]
    if instruction.operation in COLLECTIVES:
        return [array for arrays in (instruction.result, *operands) for array in arrays]
    return list(operands[0]) if instruction.opcode == "gather" and operands else []


def _loops(program: Program, name: str) -> list[Instruction]:
    """The loops of a computation that are in no other one."""
    found = []
    for instruction in program.computation(name).values():
        if instruction.opcode == "while":
            found.append(instruction)
        else:
            found += [loop for inner in _callees(instruction) for loop in _loops(program, inner)]
    return found


def _reached(program: Program, name: str) -> Iterator[str]:
    """A computation and all that it calls."""
    yield name
    for instruction in program.computation(name).values():
        for inner in _callees(instruction):
            yield from _reached(program, inner)


def _callees(instruction: Instruction) -> list[str]:
    branches = [name.strip().lstrip("%") for name in instruction.braces("branch_computations").split(",")]
    return [name for name in (*map(instruction.attribute, _CALLED), *branches) if name]


if __name__ == "__main__":
    from contexture.train.plan.topology import silence_compilers, topology

    silence_compilers()
    import jax

    from contexture.cli.parse import parse as parse_options
    from contexture.configs import recipe
    from contexture.requests import PlanRequest

    jax.config.update("jax_platforms", "cpu")
    name, *words = sys.argv[1:]
    default = PlanRequest(**{field.name: getattr(recipe(name), field.name) for field in dataclasses.fields(Run)})
    request = parse_options(PlanRequest, words, "plan", default)
    print(json.dumps(findings(request.run, topology(request.topology))))
