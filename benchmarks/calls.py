"""What a second `predict` or `embed` of an open model takes beside the model itself: our own time.

    python benchmarks/calls.py [--calls 200] [--json]

For the smallest recipe of each family, with one text and with 16: the whole call, and the model's compiled program on
the same arrays, which lie on the device already. They take turns, and the difference of their medians is ours:
tokenising, batches, transfers, results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness import cpu_name

TEXTS = [f"The {animal} sees the {thing} near the old house." for animal in ("cat", "dog", "bird", "queen")
         for thing in ("river", "letter", "red door", "sea")]  # fmt: skip
SMALL = {"data.length": 32, "data.batch": 16, "steps": 1, "optim.warmup": 0}


def runs(folder: Path) -> dict[str, Path]:
    """Returns a fine-tuned run of each family, trained for one step: what it answers does not matter."""
    import contexture

    text = folder / "text.txt"
    text.write_text("\n".join(TEXTS * 20) + "\n", encoding="utf-8")
    rows = [(text, "animal" if n % 2 else "other") for n, text in enumerate(TEXTS)]
    tuned: dict[str, Path] = {}
    for family in ("bert", "gpt", "elmo"):
        options = SMALL | {"dir": folder / family, "data.path": text}
        options |= {"data.negatives": 8} if family == "elmo" else {}
        source = contexture.pretrain(f"{family}.tiny", options)
        tuned[family] = contexture.finetune(source, train=rows, dir=folder / f"{family}-tuned", options=SMALL)
    return tuned


class Recorder:
    """A function, and what it was called with last."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.given = function, ()

    def __call__(self, *given: Any) -> Any:
        self.given = given
        return self.function(*given)


def seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def own_time(call: Callable[[], object], program: Recorder, calls: int) -> dict[str, float]:
    """Returns medians in ms: of whole calls, of the program alone, and what is ours; the first calls are left out."""
    import jax

    for _ in range(3):
        call()
    given = tuple(_on_device(x) for x in program.given)
    bare: Callable[[], object] = lambda: jax.block_until_ready(program.function(*given))  # noqa: E731
    bare()
    turns = [(seconds(call), seconds(bare)) for _ in range(calls)]
    whole, alone = (1000 * statistics.median(column) for column in zip(*turns, strict=True))
    return {"whole_ms": whole, "model_ms": alone, "own_ms": whole - alone}


def _on_device(x: Any) -> Any:
    """Arrays on the device; a configuration stays what it is."""
    import jax
    import numpy as np

    arrays = all(isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(x))
    return jax.device_put(x) if arrays else x


def measured(calls: int) -> list[dict[str, Any]]:
    import contexture
    from contexture.analysis import embed

    states, rows = Recorder(embed._states), []
    embed._states = states  # pyright: ignore[reportAttributeAccessIssue]
    with tempfile.TemporaryDirectory() as folder:
        for family, run in runs(Path(folder)).items():
            model = contexture.open(run)
            step = Recorder(model._predictor._step)
            model._predictor._step = step
            for count in (1, len(TEXTS)):
                texts = TEXTS[:count]
                with model.computing():
                    for name, call, program in (
                        ("embed", partial(model.embed, texts), states),
                        ("predict", partial(model.predict, texts), step),
                    ):
                        rows.append({"family": family, "call": name, "texts": count, **own_time(call, program, calls)})
                        print(rows[-1], file=sys.stderr)
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--calls", type=int, default=200)
    arguments.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = arguments.parse_args()
    rows = measured(args.calls)
    if args.json:
        print(json.dumps({"cpu": cpu_name(), "calls": args.calls, "rows": rows}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("", "texts", "whole call, ms", "model alone, ms", "ours, ms", title=f"{cpu_name()}: second calls")
    for row in rows:
        figures = (f"{row[name]:.2f}" for name in ("whole_ms", "model_ms", "own_ms"))
        table.add_row(f"{row['family']}.tiny {row['call']}", str(row["texts"]), *figures)
    Console().print(table)


if __name__ == "__main__":
    main()
