"""Plans as text for people."""

from typing import Literal, cast

from contexture.train.plan.chips import GIB
from contexture.train.plan.plan import CompiledPlan, Plan, TimedPlan

_KINDS: tuple[Literal["parameters", "optimizer", "carry", "batch", "saved_activations", "temporaries"], ...] = (
    "parameters",
    "optimizer",
    "carry",
    "batch",
    "saved_activations",
    "temporaries",
)
COLUMN = 22
"""Column at which the texts of `describe` begin, after their names."""


def describe(made: Plan) -> str:
    """Returns a plan for people, in GiB, milliseconds and days."""
    # A line for each fact, its name in a column: readable without knowing the JSON.
    axes = " × ".join(f"{axis} {size}" for axis, size in made["mesh"].items())
    parts = f" in {made['accumulate']} parts" if made["accumulate"] > 1 else ""
    options = " ".join(f"{name}={value}" for name, value in made["compiler_options"].items())
    memory = made["bytes_per_device"]
    total = _gib(memory["total"])
    # What was planned, and its memory: known of every plan.
    rows = [
        ("model", f"{made['recipe']}, {made['parameters']:,} parameters"),
        ("devices", f"{made['devices']} of {made['topology']} as {axes}"),
        ("batch", f"{made['batch']:,} sequences of {made['length']:,} tokens{parts}"),
        ("attention", made["attention"] or "none"),
        ("remat", made["remat"] or "does not apply"),
        ("compiler options", options or "none"),
        ("memory", ", ".join(f"{kind.replace('_', ' ')} {_gib(memory[kind])}" for kind in _KINDS if memory[kind] != 0)),
        ("fits", f"{'yes' if made['fits'] else 'NO'}: {total} of {_gib(memory['available'])}"),
    ]
    # Known once the step compiled: arrays, products, traffic.
    if "flops" in made:
        made = cast(CompiledPlan, made)
        rows += [
            ("largest array", f"{_gib(row['bytes'])} {row['array']} {row['source']}".rstrip())
            for row in made["largest_arrays"]
        ]
        sent = ", ".join(f"{kind} {_gib(t['bytes'])} in {t['count']:.0f}" for kind, t in made["collectives"].items())
        rows += [
            ("FLOPs a device", f"{made['flops']:.3g}, of the model {made['model_flops']:.3g}"),
            ("memory traffic", _gib(made["memory_traffic"])),
            ("messages", sent or "none"),
        ]
        if across := made.get("between_slices"):
            rows.append(("between slices", f"{_gib(across['bytes'])} in {across['count']:.0f}"))
    # Known for chips with peaks: times. A CPU has none.
    if "step_ms" in made:
        made = cast(TimedPlan, made)
        times = ", ".join(f"{name} {value:.1f} ms" for name, value in made["milliseconds"].items())
        rows += [
            ("a step at the peaks", f"{times}: bound by {made['bound_by']}"),
            (
                "MFU at most",
                f"{made['mfu']:.2f}, HFU {made['hfu']:.2f}; {made['tokens_per_second']:,.0f} tokens a second",
            ),
            ("all steps", _duration(made)),
        ]
    rows += [("compiled in", f"{made['compile_seconds']:.0f} s"), *(("warning", line) for line in made["warnings"])]
    return "\n".join(f"{name:<{COLUMN}}{text}" for name, text in rows)


def _gib(size: object) -> str:
    return "–" if size is None else f"{float(str(size)) / GIB:.3g} GiB"


def _duration(made: TimedPlan) -> str:
    # Without a number of steps only the time of one is known.
    if made["steps"] is None or made["days"] is None or made["chip_hours"] is None:
        return "the run counts in epochs; give --steps"
    return f"{made['steps']:,}: {made['days']:.2f} days, {made['chip_hours']:,.0f} chip-hours"


def describe_all(plans: list[Plan]) -> str:
    """Returns a table of plans for people, and the options of the best one, which is the first."""
    head = ("mesh", "batch", "parts", "remat", "attention", "GiB", "fits", "ms a step", "bound by", "MFU", "days")
    rows: list[tuple[str, ...]] = [head]
    for made in plans:
        memory = made["bytes_per_device"]["total"] / GIB
        # A plan that did not fit has no times.
        figures = ("–",) * 4
        if "step_ms" in made:
            timed = cast(TimedPlan, made)
            days = "–" if timed["days"] is None else f"{timed['days']:.1f}"
            figures = (f"{timed['step_ms']:.0f}", timed["bound_by"], f"{timed['mfu']:.2f}", days)
        layers = (made["remat"] or "–", made["attention"].partition(":")[0] or "–")
        mesh, fits = "×".join(map(str, made["mesh"].values())), "yes" if made["fits"] else "NO"
        rows.append((mesh, str(made["batch"]), str(made["accumulate"]), *layers, f"{memory:.1f}", fits, *figures))
    # Columns padded by hand: plain text, the same on a terminal and in a file.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    # `suggest` sorts the plans: those that fit first, the fastest first.
    best = plans[0]
    if not best["fits"]:
        return "\n".join([*lines, "nothing fits; give more devices"])
    return "\n".join([*lines, f"options: {options_of(best)}"])


def describe_nearest(found: Plan | None) -> str:
    """Returns advice for a plan that does not fit: the options of the nearest one that does."""
    if found is None:
        return f"{'nearest that fits':<{COLUMN}}none was found; give more devices, or a smaller --data.batch"
    memory = found["bytes_per_device"]
    # The line begins as those of `describe`, below which it is printed.
    used = f"{_gib(memory['total'])} of {_gib(memory['available'])}"
    return f"{'nearest that fits':<{COLUMN}}--topology {found['topology']} {options_of(found)}: {used}"


def options_of(made: Plan) -> str:
    """Returns the options of a plan: its mesh, batch, microbatches, remat and attention."""
    options = " ".join(f"--mesh.{axis} {size}" for axis, size in made["mesh"].items())
    options += f" --data.batch {made['batch']} --optim.accumulate {made['accumulate']}"
    # auto would choose again on the real devices; these are the choices that the plan was compiled with.
    if made["remat"]:
        attention = made["attention"].partition(":")[0]
        options += f" --model.remat {made['remat']} --model.unroll 1 --model.attention {attention}"
    return options
