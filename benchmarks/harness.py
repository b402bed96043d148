"""Contenders that train in processes of their own and take turns: what every benchmark of this folder shares.

A worker prepares itself and returns (steps, facts): `steps(n)` trains n steps and returns the last loss. Each lives in
its own process, which stays alive and works only when told to: the others sleep. Rounds alternate, the order rotates,
and all have the same batches, cores and allocator settings. Only ratios within one run mean anything, and on a shared
machine a difference of 15 % is a tie.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

Worker = tuple[Callable[[int], float], dict[str, Any]]
Workers = dict[str, Callable[[argparse.Namespace], Worker]]

# glibc gives large blocks back to the system and asks for them again at every step: these make it keep them. Blocks of
# more than 64 MB are kept by the one arena alone that all threads then share, at the price of waiting for each other.
MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def parser(description: str | None, workers: Workers, *, steps: int, one_arena: bool) -> argparse.ArgumentParser:
    """The options that every benchmark has. one_arena: of the allocator, for steps of more than 64 MB."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--steps", type=int, default=steps, help="steps per contender and round")
    arguments.add_argument("--warmup", type=int, default=3, help="steps after the first one, before the rounds")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--pause", type=float, default=0.3, help="seconds of rest before each measurement")
    arguments.add_argument("--torch-adamw", choices=("fused", "foreach"), default="fused")
    arguments.add_argument("--plain-malloc", action="store_true", help="leave the allocator as it is, for all")
    arguments.set_defaults(platform="cpu", dtype="float32", trace="", words=None)
    arguments.set_defaults(malloc=MALLOC | ({"MALLOC_ARENA_MAX": "1"} if one_arena else {}))
    arguments.add_argument("--only", nargs="+", choices=workers, default=list(workers), help="these contenders alone")
    arguments.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments.add_argument("--worker", choices=workers, help=argparse.SUPPRESS)
    return arguments


def torch_steps(
    model: Any,
    loss_of: Callable[[Any], Any],
    optimizer: Any,
    clip: float,
    data: Sequence[Any],
    scale: float = 1.0,
    dtype: str = "float32",
) -> Callable[[int], float]:
    """Training steps of a torch model on batches that take turns, on the device of its parameters.

    scale: of the loss whose gradient is taken. dtype: that autocast computes in.
    """
    import torch  # pyright: ignore[reportMissingImports]

    done, device = 0, next(model.parameters()).device
    data = [{name: values.to(device) for name, values in batch.items()} for batch in data]
    autocast = torch.autocast(device.type, getattr(torch, dtype), enabled=dtype != "float32")

    def steps(n: int) -> float:
        nonlocal done
        loss = torch.zeros(())
        for _ in range(n):
            with autocast:
                loss = loss_of(data[done % len(data)])
            (scale * loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
        return loss.item()

    return steps


def trainer(run: Any, batches: Sequence[dict[str, Any]], labels: tuple[str, ...] = ()) -> Worker:
    """Our own training step, over these batches in turn; fields come in any type and are cast to their own."""
    import jax
    import numpy as np

    from contexture.models.shapes import count
    from contexture.train import mesh as meshes
    from contexture.train.checkpoints.transfer import model_of
    from contexture.train.objectives import batch_fields, objective_of
    from contexture.train.programs import step_settings
    from contexture.train.settings.sections import MeshConfig
    from contexture.train.step import create, train_step

    mesh, model, fields, data = meshes.build(MeshConfig()), model_of(run, labels), batch_fields(run), []
    for batch in batches:
        kinds = {name: np.float32 if kind.startswith("f32") else np.int32 for name, kind in fields.items()}
        arrays = {name: np.asarray(batch[name], kinds[name]) for name in fields}
        data.append(meshes.shard_batch(mesh, arrays, fields, run.data.batch))
    with jax.set_mesh(mesh):
        draw, shapes, _ = create(model, run, mesh)
        step, settings = train_step(model, objective_of(run), run, mesh), step_settings(run)
        state = draw(run.seed)
    done = 0

    def steps(n: int) -> float:
        nonlocal state, done
        measured: Any = {"loss": 0.0}
        with jax.set_mesh(mesh):
            for _ in range(n):
                state, measured = step(state, data[done % len(data)], settings)
                done += 1
        jax.block_until_ready(state)
        return float(measured["loss"])

    return steps, {"jax": jax.__version__, "parameters": count(shapes.params)}


def work(args: argparse.Namespace, workers: Workers) -> None:
    """A worker's life: a number of steps per line in, `{"seconds", "loss"}` per line out, until its input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    if hasattr(os, "sched_setaffinity"):  # before any library counts the cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    sys.path.insert(0, str(ROOT))
    began = time.perf_counter()
    steps, facts = workers[args.worker](args)
    first = steps(1)
    started = time.perf_counter() - began
    steps(args.warmup)
    answers.write(json.dumps({**facts, "first_loss": first, "start_seconds": started}) + "\n")
    for line in sys.stdin:
        count, _, folder = line.strip().partition(" ")
        began = time.perf_counter()
        with traced(folder):
            loss = steps(int(count))
        measured = {"seconds": time.perf_counter() - began, "loss": loss, "device_bytes": device_bytes()}
        answers.write(json.dumps(measured) + "\n")


def traced(folder: str) -> contextlib.AbstractContextManager[None]:
    """Within the block, jax writes what the device does into this folder; "": it does not."""
    if not folder:
        return contextlib.nullcontext()
    import jax

    return jax.profiler.trace(folder)


def device_bytes() -> int:
    """Returns the most bytes that this process has held of its GPU; 0 without one."""
    # Only the library that a contender computes with is loaded.
    if "jax" in sys.modules:
        return (sys.modules["jax"].devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    cuda = sys.modules["torch"].cuda
    return cuda.max_memory_allocated() if cuda.is_available() else 0


class Contender:
    """A worker process and what it measured."""

    def __init__(self, name: str, args: argparse.Namespace):
        env = os.environ | {"OMP_NUM_THREADS": str(args.threads), "PYTHONPATH": str(ROOT)}
        env |= {"JAX_PLATFORMS": args.platform} if args.platform == "cpu" else {}
        if not args.plain_malloc:
            env |= args.malloc
        command = [sys.executable, *(args.words or sys.argv), "--worker", name]
        self.name, self.rates, self.device_bytes = name, list[float](), 0
        self.facts, self.first = dict[str, Any](), ""
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait(self) -> None:
        """Waits until it has made its first steps, or has ended."""
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()

    def prepared(self) -> None:
        """Waits until it has made its first steps. Raises SystemExit where it has ended before."""
        if not self.first:
            self.wait()
        self.facts = self._read(self.first)
        print(f"{self.name}: {self.facts}", file=sys.stderr)

    def _read(self, line: str) -> dict[str, Any]:
        if not line:
            raise SystemExit(
                f"the worker {self.name!r} ended with exit code {self.process.wait()}; see its words above"
            )
        return json.loads(line)

    def measure(self, steps: int, tokens: float) -> None:
        answer = self.run(f"{steps}")
        self.rates.append(steps * tokens / answer["seconds"])
        self.device_bytes = answer["device_bytes"]

    def run(self, order: str) -> dict[str, Any]:
        """Trains: `STEPS`, or `STEPS FOLDER` to trace them there."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        assert self.process.stdout is not None
        return self._read(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def compare(args: argparse.Namespace, pairs: Sequence[tuple[str, str]], tokens: float) -> dict[str, Any]:
    """Starts the contenders one after the other, runs the rounds, and returns the rates and ratios."""
    contenders: list[Contender] = []
    try:
        for name in args.only:
            contenders.append(Contender(name, args))
            contenders[-1].prepared()
        return rounds(args, contenders, pairs, tokens)
    finally:
        for contender in contenders:
            contender.close()


def rounds(
    args: argparse.Namespace, contenders: Sequence[Contender], pairs: Sequence[tuple[str, str]], tokens: float
) -> dict[str, Any]:
    """Measures contenders that are prepared, in turns. tokens: of a step."""
    for turn in range(args.rounds):
        for place in range(len(contenders)):
            contender = contenders[(turn + place) % len(contenders)]
            time.sleep(args.pause)  # the last one's threads stop spinning
            contender.measure(args.steps, tokens)
        rates = ", ".join(f"{contender.name} {contender.rates[-1]:.0f}" for contender in contenders)
        print(f"round {turn + 1} of {args.rounds}, tokens/s: {rates}", file=sys.stderr)
    for contender in contenders if args.trace else ():
        if "jax" in contender.facts:
            contender.run(f"2 {Path(args.trace) / contender.name}")
    measured = {contender.name: contender for contender in contenders}
    ratios = {
        f"{a} / {b}": spread([x / y for x, y in zip(measured[a].rates, measured[b].rates, strict=True)])
        for a, b in pairs
        if a in measured and b in measured
    }
    return {
        "rounds": args.rounds,
        "steps_per_round": args.steps,
        "machine": {"cpu": cpu_name(), "threads": args.threads, "python": platform.python_version()},
        "malloc": {} if args.plain_malloc else args.malloc,
        "contenders": {
            name: {**one.facts, "device_bytes": one.device_bytes, "tokens_per_second": spread(one.rates)}
            for name, one in measured.items()
        },
        "ratios": ratios,
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def show(args: argparse.Namespace, result: dict[str, Any], title: str) -> None:
    """Prints a result: one JSON object with --json, else tables."""
    if args.json:
        print(json.dumps(result))
        return
    from rich.console import Console
    from rich.table import Table

    machine = result["machine"]
    malloc = "the malloc settings" if result["malloc"] else "stock malloc"
    print(f"{title}\n{machine['cpu']}, {machine['threads']} threads, {malloc}")
    print(f"{result['rounds']} rounds of {result['steps_per_round']} steps; median and min - max over the rounds")
    rates = {name: one["tokens_per_second"] for name, one in result["contenders"].items()}
    for head, rows, form in (("tokens/s", rates, "{:,.0f}"), ("ratio of tokens/s", result["ratios"], "{:.2f}")):
        if rows:
            table = Table(head, "median", "min - max")
            for name, row in rows.items():
                table.add_row(
                    name, form.format(row["median"]), " - ".join(form.format(row[end]) for end in ("min", "max"))
                )
            Console().print(table)
