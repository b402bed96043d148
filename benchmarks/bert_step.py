"""One BERT training step, ours against transformers on torch, on this machine's CPU: `make bench`.

A step is forward (masked words and next sentence, dropout 0.1), backward, global-norm clip and AdamW, in float32. The
contenders:

    torch     BertForPreTraining as its users run it: labels and softmax at all positions
    gathered  the same model, its masked-word head at the 20 prediction slots alone
    ours      the recipe's own step (gathered slots)

Each lives in its own process, which stays alive and works only when told to: the others sleep. Rounds alternate, the
order rotates, and all have the same batches, cores and allocator settings. Only ratios within one run of this program
mean anything, and on a shared machine a difference of 15 % is a tie.

    python benchmarks/bert_step.py --size small --batch 16 --rounds 10 [--json] [--plain-malloc]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent

# layers, hidden, heads, ffn
SIZES = {
    "tiny": (2, 128, 2, 512),
    "prototype": (4, 256, 4, 1024),
    "small": (4, 512, 8, 2048),
    "medium": (8, 512, 8, 2048),
    "base": (12, 768, 12, 3072),
}
VOCAB, DROPOUT, PEAK_LR, DECAY, CLIP = 30522, 0.1, 1e-4, 0.01, 1.0

# glibc gives large blocks back to the system and asks for them again at every step: these make it keep them.
MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def batches(args: argparse.Namespace, count: int = 4) -> list[dict[str, np.ndarray]]:
    """The same `count` batches for everyone: every tenth row or so is short, as in BERT's data.

    Fields: tokens, segments i32 BL; mask bool BL; slots, words i32 BP; weights f32 BP; is_random i32 B.
    """
    random = np.random.default_rng(0)
    B, L, P = args.batch, args.length, args.predictions
    made = []
    for _ in range(count):
        lengths = np.where(random.random(B) < 0.1, random.integers(min(2 * P, L), L + 1, B), L)
        places = np.arange(L)[None, :]
        mask = places < lengths[:, None]
        tokens = np.where(mask, random.integers(1000, VOCAB, (B, L)), 0)
        slots = np.stack([np.sort(random.permutation(length - 2)[:P] + 1) for length in lengths])
        words = np.take_along_axis(tokens, slots, axis=1)
        np.put_along_axis(tokens, slots, 103, axis=1)
        made.append(
            {
                "tokens": tokens.astype(np.int32),
                "segments": (mask & (places >= lengths[:, None] // 2)).astype(np.int32),
                "mask": mask,
                "slots": slots.astype(np.int32),
                "words": words.astype(np.int32),
                "weights": np.ones((B, P), np.float32),
                "is_random": random.integers(0, 2, B).astype(np.int32),
            }
        )
    return made


# ------------------------------------------------------------------------------------------------------------- workers
# A worker prepares itself and returns (steps, facts): `steps(n)` trains n steps and returns the last loss.

Worker = tuple[Callable[[int], float], dict[str, Any]]


def torch_worker(args: argparse.Namespace, *, gathered: bool) -> Worker:
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    layers, hidden, heads, ffn = SIZES[args.size]
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=VOCAB,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=ffn,
            max_position_embeddings=512,
            hidden_dropout_prob=DROPOUT,
            attention_probs_dropout_prob=DROPOUT,
        )
    ).train()
    undecayed = [p for name, p in model.named_parameters() if "LayerNorm" in name or name.endswith("bias")]
    decayed = [p for name, p in model.named_parameters() if not ("LayerNorm" in name or name.endswith("bias"))]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": undecayed, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, fused=args.torch_adamw == "fused")

    data = []
    for batch in batches(args):
        labels = np.full(batch["tokens"].shape, -100)
        np.put_along_axis(labels, batch["slots"], batch["words"], axis=1)
        whole = {name: torch.from_numpy(array.astype(np.int64)) for name, array in batch.items()}
        data.append({**whole, "labels": torch.from_numpy(labels)})

    def loss_all(batch: dict[str, Any]) -> Any:
        return model(
            input_ids=batch["tokens"],
            attention_mask=batch["mask"],
            token_type_ids=batch["segments"],
            labels=batch["labels"],
            next_sentence_label=batch["is_random"],
        ).loss

    def loss_gathered(batch: dict[str, Any]) -> Any:
        encoded = model.bert(batch["tokens"], attention_mask=batch["mask"], token_type_ids=batch["segments"])
        rows = torch.arange(args.batch)[:, None]
        scores = model.cls.predictions(encoded.last_hidden_state[rows, batch["slots"]])
        is_random = model.cls.seq_relationship(encoded.pooler_output)
        cross_entropy = torch.nn.functional.cross_entropy
        return cross_entropy(scores.flatten(0, 1), batch["words"].flatten()) + cross_entropy(
            is_random, batch["is_random"]
        )

    loss_of = loss_gathered if gathered else loss_all
    done = 0

    def steps(n: int) -> float:
        nonlocal done
        loss = torch.zeros(())
        for _ in range(n):
            loss = loss_of(data[done % len(data)])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
        return loss.item()

    facts = {"torch": torch.__version__, "transformers": transformers.__version__}
    return steps, {**facts, "parameters": sum(p.numel() for p in model.parameters()), "optimizer": args.torch_adamw}


def ours(args: argparse.Namespace) -> Worker:
    import jax

    from data.config import DataConfig
    from models.config import BertConfig
    from models.model import build
    from models.shapes import count
    from train import mesh as meshes
    from train.config import Run
    from train.objectives import OBJECTIVES, batch_fields
    from train.options import MeshConfig, OptimConfig
    from train.step import create, train_step

    layers, hidden, heads, ffn = SIZES[args.size]
    run = Run(
        model=BertConfig(vocab=VOCAB, layers=layers, hidden=hidden, heads=heads, ffn=ffn),
        data=DataConfig(batch=args.batch, length=args.length, predictions=args.predictions),
        optim=OptimConfig(name="adamw", schedule="linear", warmup=10_000),
    )
    mesh = meshes.build(MeshConfig())
    objective = OBJECTIVES[run.objective]
    model = build(run.model, objective.heads)
    ones = np.ones(args.batch, np.float32)
    data = []
    for batch in batches(args):
        named = {
            "tokens": batch["tokens"],
            "segments": batch["segments"],
            "mask": batch["mask"],
            "slots": batch["slots"],
            "labels": batch["words"],
            "slot_weights": batch["weights"],
            "is_random": batch["is_random"],
            "valid": ones,
        }
        fields = batch_fields(run)
        kinds = {name: np.float32 if fields[name].startswith("f32") else np.int32 for name in fields}
        arrays = {name: np.asarray(value, kinds[name]) for name, value in named.items()}
        data.append(meshes.place(mesh, arrays, fields, args.batch))
    make, shapes, shardings = create(model, run, mesh)
    with jax.set_mesh(mesh):
        step = train_step(model, objective, run, shardings)
        state = make()
    done = 0

    def steps(n: int) -> float:
        nonlocal state, done
        measured: Any = {"loss": 0.0}
        with jax.set_mesh(mesh):
            for _ in range(n):
                state, measured = step(state, data[done % len(data)])
                done += 1
        jax.block_until_ready(state)
        return float(measured["loss"])

    return steps, {"jax": jax.__version__, "parameters": count(shapes.params)}


WORKERS: dict[str, Callable[[argparse.Namespace], Worker]] = {
    "torch": lambda args: torch_worker(args, gathered=False),
    "gathered": lambda args: torch_worker(args, gathered=True),
    "ours": ours,
}


def work(args: argparse.Namespace) -> None:
    """A worker's life: a number of steps per line in, `{"seconds", "loss"}` per line out, until its input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    if hasattr(os, "sched_setaffinity"):  # before any library counts the cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    sys.path.insert(0, str(ROOT))
    began = time.perf_counter()
    steps, facts = WORKERS[args.worker](args)
    first = steps(1)
    started = time.perf_counter() - began
    steps(args.warmup)
    answers.write(json.dumps({**facts, "first_loss": first, "start_seconds": started}) + "\n")
    for line in sys.stdin:
        began = time.perf_counter()
        loss = steps(int(line))
        answers.write(json.dumps({"seconds": time.perf_counter() - began, "loss": loss}) + "\n")


# ------------------------------------------------------------------------------------------------------------- harness


class Contender:
    """A worker process and what it measured."""

    def __init__(self, name: str, args: argparse.Namespace):
        env = os.environ | {"OMP_NUM_THREADS": str(args.threads), "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        if not args.plain_malloc:
            env |= MALLOC
        command = [sys.executable, __file__, *sys.argv[1:], "--worker", name]
        self.name, self.rates = name, []
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self.facts = self._answer()
        except BaseException:
            self.close()
            raise

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                f"the worker {self.name!r} ended with exit code {self.process.wait()}; see its words above"
            )
        return json.loads(line)

    def measure(self, steps: int, tokens: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        self.rates.append(steps * tokens / self._answer()["seconds"])

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Starts the contenders one after the other, runs the rounds, and returns the rates and ratios."""
    contenders: list[Contender] = []
    try:
        for name in args.only:
            contenders.append(Contender(name, args))
            print(f"{name}: {contenders[-1].facts}", file=sys.stderr)
        for turn in range(args.rounds):
            for place in range(len(contenders)):
                contender = contenders[(turn + place) % len(contenders)]
                time.sleep(args.pause)  # the last one's threads stop spinning
                contender.measure(args.steps, args.batch * args.length)
            rates = ", ".join(f"{contender.name} {contender.rates[-1]:.0f}" for contender in contenders)
            print(f"round {turn + 1} of {args.rounds}, tokens/s: {rates}", file=sys.stderr)
    finally:
        for contender in contenders:
            contender.close()

    measured = {contender.name: contender for contender in contenders}
    pairs = [("ours", "torch"), ("ours", "gathered"), ("gathered", "torch")]
    ratios = {
        f"{a} / {b}": spread([x / y for x, y in zip(measured[a].rates, measured[b].rates, strict=True)])
        for a, b in pairs
        if a in measured and b in measured
    }
    layers, hidden, heads, ffn = SIZES[args.size]
    return {
        "model": {"size": args.size, "layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "vocab": VOCAB},
        "step": {name: getattr(args, name) for name in ("batch", "length", "predictions")},
        "rounds": args.rounds,
        "steps_per_round": args.steps,
        "machine": {"cpu": cpu_name(), "threads": args.threads, "python": platform.python_version()},
        "malloc": {} if args.plain_malloc else MALLOC,
        "contenders": {name: {**one.facts, "tokens_per_second": spread(one.rates)} for name, one in measured.items()},
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


def show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    model, step, machine = result["model"], result["step"], result["machine"]
    malloc = "the malloc settings" if result["malloc"] else "stock malloc"
    print(
        f"BERT {model['size']} ({model['layers']} layers, {model['hidden']}), batch {step['batch']} x {step['length']}"
    )
    print(f"{machine['cpu']}, {machine['threads']} threads, {malloc}")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4, help="steps per contender and round")
    parser.add_argument("--warmup", type=int, default=3, help="steps after the first one, before the rounds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.3, help="seconds of rest before each measurement")
    parser.add_argument("--torch-adamw", choices=("fused", "foreach"), default="fused")
    parser.add_argument("--plain-malloc", action="store_true", help="leave the allocator as it is, for all")
    parser.add_argument("--only", nargs="+", choices=WORKERS, default=list(WORKERS), help="these contenders alone")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    result = compare(args)
    if args.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
