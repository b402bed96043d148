"""Training steps on one accelerator, ours against torch.compile with fused attention, in bfloat16.

    bert        BERT-large, 48 sequences of 512 tokens, masked tokens and next sentence, dropout 0.1
    gpt         GPT-2 124M, 32 sequences of 1,024 tokens, no dropout
    elmo        the original ELMo, 384 lanes of 20 words, 8,192 negatives of 793,471 words
    finetune    BERT-base on 256 short texts a step (`short_texts.py`): rows that texts share against padded batches
    product     8,192 × 8,192 by 8,192 × 8,192: the most that the chip does

torch gathers BERT's predicted slots and reads each of ELMo's distinct words once, as ours does; its LSTM is cuDNN's.
`ours_loop` has a loop over layers where `ours` has them unrolled. Batches lie on the device. MFU counts the model's
FLOPs by PaLM's convention (appendix B: all pairs of attention, also those that a causal mask hides; nothing twice, no
padding), over the data sheet's dense bfloat16 peak. `harness.py` says how they are measured; here several
contenders compile at once, and wait for each other.

    python benchmarks/accelerator.py [--workload bert gpt] [--to figures.json] [--trace FOLDER]

Some eight minutes on an H200. `--tiny --platform cpu` tries all of it on small models.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import bert_step
import elmo_step
import numpy as np
import short_texts
from harness import Contender, Worker, Workers, parser, rounds, torch_steps, trainer, work

SHAPES = {
    "bert": (48, 512, 77),
    "gpt": (32, 1024, 0),
    "elmo": (384, 20, 0),
    "finetune": (256, 0, 0),
    "product": (8192, 0, 0),
}
"""Sequences of a step, their tokens, predicted slots; the side of a product's matrices."""
TINY = {"bert": (4, 64, 10), "gpt": (2, 64, 0), "elmo": (4, 20, 0), "finetune": (32, 0, 0), "product": (256, 0, 0)}
MODELS = {"bert": "bert.large", "gpt": "gpt.gpt2_124m", "elmo": "elmo.original"}
STEPS, BATCHES = {"product": 200}, 16
"""Steps of a round, 20 elsewhere; the batches of a fine-tuning, which take turns."""
GROUPS, LOOPS = (("bert", "elmo"), ("gpt", "finetune", "product")), ("bert", "gpt")
"""Workloads whose contenders compile at the same time, as the GPU's memory allows; those with layers."""
GIB = 2**30


def run_of(args: argparse.Namespace, *, loop: bool = False) -> Any:
    """The recipe's run at the size that is measured. loop: over the layers, else they are unrolled."""
    from contexture import recipe

    name, (batch, length, slots) = MODELS[args.workload], shape(args)
    more: dict[str, Any] = {"data.batch": batch, "data.length": length, "model.dtype": args.dtype}
    if slots:
        more["data.max-predictions"] = slots
    if args.workload != "elmo":
        more["model.unroll"] = 1 if loop else recipe(name).model.layers
    if args.tiny:
        name = name.split(".")[0] + ".tiny"
        more |= {"model.unroll": 1 if loop else 2} if args.workload != "elmo" else {"data.word-types": 128}
    return recipe(name, more)


def shape(args: argparse.Namespace) -> tuple[int, int, int]:
    return (TINY if args.tiny else SHAPES)[args.workload]


def bert_args(args: argparse.Namespace) -> argparse.Namespace:
    """As `bert_step.py` has them."""
    batch, length, predictions = shape(args)
    size = "tiny" if args.tiny else "large"
    return argparse.Namespace(
        **{**vars(args), "size": size, "batch": batch, "length": length, "predictions": predictions}
    )


def gpt_batches(args: argparse.Namespace, vocabulary: int) -> list[dict[str, np.ndarray]]:
    """Four batches of random tokens; the last of each sequence predicts nothing, as in transformers' loss."""
    random, (B, L, _) = np.random.default_rng(0), shape(args)
    made = []
    for _ in range(4):
        tokens = random.integers(0, vocabulary, (B, L))
        weights = np.ones((B, L), np.float32)
        weights[:, -1] = 0
        following = np.roll(tokens, -1, 1)
        made.append({"tokens": tokens, "next": following, "next_weights": weights, "mask": np.ones((B, L), np.int32),
                     "valid": np.ones(B, np.float32)})  # fmt: skip
    return made


def elmo_batches(args: argparse.Namespace) -> list[dict[str, np.ndarray]]:
    """Four batches of random lanes: of a batch's distinct words the common ones are read most, as by Zipf's law."""
    from contexture.data import rng

    run, random = run_of(args), np.random.default_rng(0)
    B, L, R, V = run.data.batch, run.data.length, run.data.word_types, run.model.vocab
    made = []
    for step in range(4):
        types = random.integers(1, 260, (R, 50))
        words = np.sort(random.choice(V, R, replace=False))
        batch: dict[str, np.ndarray] = {"types": types, "valid": np.ones(B, np.float32)}
        for suffix in ("", "_backward"):
            # Log-uniform over the batch's words: the first is the most frequent.
            lanes = np.minimum(np.exp(random.random((B, L + 1)) * math.log(R)).astype(int), R - 1)
            batch |= {"index" + suffix: lanes[:, :-1], "next" + suffix: words[lanes[:, 1:]],
                      "next_weights" + suffix: np.ones((B, L), np.float32)}  # fmt: skip
        keys = [rng.key(rng.NEGATIVES, step, direction) for direction in range(2)]
        drawn = [rng.distinct_log_uniform(key, run.data.negatives, V) for key in keys]
        batch["negatives"] = np.stack([negatives for negatives, _ in drawn])
        batch["tries"] = np.array([tries for _, tries in drawn], np.float32)
        made.append(batch)
    return made


def ours(args: argparse.Namespace, *, loop: bool = False) -> Worker:
    """Our step."""
    if args.workload == "bert":
        return trainer(run_of(args, loop=loop), bert_step.named(bert_args(args)))
    if args.workload == "gpt":
        run = run_of(args, loop=loop)
        return trainer(run, gpt_batches(args, run.model.vocab))
    if args.workload == "elmo":
        return trainer(run_of(args), elmo_batches(args))
    if args.workload == "product":
        return our_product(args)
    run, batches, labels = finetuning(args)
    return trainer(run, [batches.read(step) for step in range(BATCHES)], labels)


def finetuning(args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """As `short_texts.py` has it."""
    from contexture.data.tokenizers.registry import load_tokenizer

    folder = Path(tempfile.mkdtemp())
    short_texts.write_vocabulary(folder)
    size = "small" if args.tiny else "base"
    sized = argparse.Namespace(**{**vars(args), "size": size, "batch": shape(args)[0], "texts": "short"})
    return short_texts.task(sized, folder, load_tokenizer(folder))


def our_product(args: argparse.Namespace) -> Worker:
    import jax
    import jax.numpy as jnp

    side = shape(args)[0]
    a, b = (jax.random.normal(jax.random.key(i), (side, side), jnp.dtype(args.dtype)) for i in range(2))
    # Each product needs the one before.
    product = jax.jit(lambda a, b: (a @ b) * side**-0.5)

    def steps(n: int) -> float:
        result = a
        for _ in range(n):
            result = product(result, b)
        return float(result[0, 0])

    return steps, {"jax": jax.__version__}


def torch_worker(args: argparse.Namespace) -> Worker:
    """torch's step: compiled, under autocast."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # what autocast leaves in float32
    if args.workload == "bert":
        return bert_step.torch_worker(bert_args(args), gathered=True, compiled=True)
    if args.workload == "product":
        return torch_product(args)
    return {"gpt": torch_gpt, "elmo": torch_elmo, "finetune": torch_finetune}[args.workload](args)


def facts_of(model: Any) -> dict[str, Any]:
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    libraries = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {**libraries, "parameters": sum(p.numel() for p in model.parameters())}


def torch_product(args: argparse.Namespace) -> Worker:
    import torch  # pyright: ignore[reportMissingImports]

    side = shape(args)[0]
    a, b = (torch.randn(side, side, dtype=getattr(torch, args.dtype), device=args.platform) for _ in range(2))
    b *= side**-0.5

    def steps(n: int) -> float:
        result = a
        for _ in range(n):
            result = result @ b
        return result[0, 0].item()

    return steps, {"torch": torch.__version__}


def torch_gpt(args: argparse.Namespace) -> Worker:
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    c = run_of(args).model
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=c.vocab, n_positions=c.length, n_embd=c.hidden, n_layer=c.layers, n_head=c.heads,
            resid_pdrop=c.dropout, embd_pdrop=c.dropout, attn_pdrop=c.attention_dropout,
        )
    )  # fmt: skip
    model = model.train().to(args.platform)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    data = [{"tokens": torch.from_numpy(batch["tokens"])} for batch in gpt_batches(args, c.vocab)]
    loss = torch.compile(lambda batch: model(input_ids=batch["tokens"], labels=batch["tokens"], use_cache=False).loss)
    return torch_steps(model, loss, optimizer, 1.0, data, dtype=args.dtype), facts_of(model)


def torch_elmo(args: argparse.Namespace) -> Worker:
    import torch  # pyright: ignore[reportMissingImports]

    model = elmo_step.torch_bilm(run_of(args).model, once=True).to(args.platform)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2, initial_accumulator_value=1.0, eps=0.0, foreach=True)
    data = [
        {
            name: torch.from_numpy(np.asarray(x, np.float32 if x.dtype.kind == "f" else np.int64))
            for name, x in b.items()
        }
        for b in elmo_batches(args)
    ]
    model.words.compile()  # cuDNN's LSTM is a program of its own
    steps = torch_steps(model, model, optimizer, 10.0, data, scale=20.0, dtype=args.dtype)
    return steps, facts_of(model)


def torch_finetune(args: argparse.Namespace) -> Worker:
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    (layers, hidden, heads, ffn), B = short_texts.SIZES["small" if args.tiny else "base"], shape(args)[0]
    config = transformers.BertConfig(
        vocab_size=5 + short_texts.WORDS, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=ffn, max_position_embeddings=128, num_labels=2,  # pyright: ignore[reportCallIssue]
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).train().to(args.platform)
    optimizer = torch.optim.AdamW(model.parameters(), lr=short_texts.PEAK_LR, fused=True)
    given, classes = short_texts.texts("short")
    random, data = np.random.default_rng(1), []
    for _ in range(BATCHES):
        chosen = random.choice(len(given), B, replace=False)
        rows = [[2, *(5 + int(word[1:]) for word in given[i].split()), 3] for i in chosen]
        longest = -(-max(map(len, rows)) // 8) * 8
        tokens = np.stack([np.pad(row, (0, longest - len(row))) for row in rows])
        labels = np.array([classes[i] for i in chosen])
        arrays = {"input_ids": tokens, "attention_mask": (tokens > 0).astype(np.int64), "labels": labels}
        data.append({name: torch.from_numpy(array) for name, array in arrays.items()})
    loss = torch.compile(lambda batch: model(**batch).loss, dynamic=True)
    return torch_steps(model, loss, optimizer, 1.0, data, dtype=args.dtype), facts_of(model)


WORKERS: Workers = {"torch": torch_worker, "ours_loop": partial(ours, loop=True), "ours": ours}


def step_figures(args: argparse.Namespace) -> tuple[float, float]:
    """The tokens of a step, and the model's FLOPs in it."""
    from contexture.models.families import family_of
    from contexture.train.objectives import batch_sizes

    batch = shape(args)[0]
    if args.workload == "product":
        return 1, 2.0 * batch**3
    if args.workload != "finetune":
        run = run_of(args)
        return batch * run.data.length, family_of(run.model).training_flops(run.model, batch_sizes(run, batch))
    run, batches, _ = finetuning(args)
    sizes = [batches.size_at(step) for step in range(BATCHES)]
    tokens = sum(size.tokens for size in sizes) / len(sizes)
    one = {**batch_sizes(run, batch), "A": 1, "L": tokens / batch}
    return tokens, family_of(run.model).training_flops(run.model, one)


def device() -> dict[str, str]:
    """Names the GPU, without holding any of it."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        name, driver, memory = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()[0].split(", ")
    except (OSError, IndexError, ValueError):
        return {"name": platform.processor() or platform.machine()}
    return {"name": name, "driver": driver, "memory": memory}


def measured(args: argparse.Namespace, contenders: list[Contender], peak: float | None) -> dict[str, Any]:
    """The rounds of one workload."""
    for contender in contenders:
        contender.prepared()
    tokens, flops = step_figures(args)
    result = rounds(args, contenders, [("ours", "torch"), ("ours", "ours_loop"), ("ours_loop", "torch")], tokens)
    for one in result["contenders"].values():
        seconds = tokens / one["tokens_per_second"]["median"]
        one |= {"step_ms": seconds * 1e3, "tflops": flops / seconds / 1e12, "device_gib": one["device_bytes"] / GIB}
        one |= {"mfu": flops / seconds / peak} if peak else {}
    return {"tokens": tokens, "model_flops": flops, **result}


def table(figures: dict[str, Any]) -> Any:
    from rich.table import Table

    shown = Table("workload", "contender", "tokens/s", "ms a step", "TFLOP/s", "MFU", "GiB", "start, s", "of torch")
    for workload, result in figures["workloads"].items():
        if "error" in result:
            shown.add_row(workload, result["error"])
            continue
        for name, one in result["contenders"].items():
            rate, ratio = one["tokens_per_second"], result["ratios"].get(f"{name} / torch")
            shown.add_row(
                workload, name, f"{rate['median']:,.0f} ({rate['min']:,.0f}-{rate['max']:,.0f})",
                f"{one['step_ms']:.1f}", f"{one['tflops']:.0f}", f"{one['mfu']:.1%}" if "mfu" in one else "",
                f"{one['device_gib']:.1f}", f"{one['start_seconds']:.0f}", f"{ratio['median']:.2f}" if ratio else "",
            )  # fmt: skip
    return shown


def of_workload(args: argparse.Namespace, workload: str) -> argparse.Namespace:
    """The options of one workload, whose workers read them from the same words."""
    only = [name for name in args.only if name != "ours_loop" or workload in LOOPS]
    trace = args.trace and str(Path(args.trace) / workload)
    own = {"workload": workload, "steps": STEPS.get(workload, args.steps), "only": only, "trace": trace}
    return argparse.Namespace(**{**vars(args), **own, "words": [*sys.argv, "--workload", workload]})


def main() -> None:
    options = parser(__doc__, WORKERS, steps=20, one_arena=False)
    options.add_argument("--workload", nargs="+", choices=SHAPES, default=list(SHAPES), help="these alone")
    options.add_argument("--platform", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--tiny", action="store_true", help="small models, to try the script")
    options.add_argument("--trace", default="", help="a folder for what the device does in two steps of ours")
    options.add_argument("--to", type=Path, help="a JSON file with all figures")
    options.set_defaults(
        dtype="bfloat16", rounds=3, warmup=BATCHES, pause=0.0, threads=len(os.sched_getaffinity(0)), plain_malloc=True
    )
    args = options.parse_args()
    if args.worker:
        args.workload = args.workload[0]
        work(args, WORKERS)
        return
    from rich.console import Console

    from contexture.train.run.throughput import peak_flops

    # Several processes share the GPU: each takes what it needs.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    began, gpu = time.perf_counter(), device()
    figures: dict[str, Any] = {"device": gpu, "dtype": args.dtype, "workloads": {}}
    for group in GROUPS:
        alone = [of_workload(args, workload) for workload in group if workload in args.workload]
        started = {one.workload: [Contender(name, one) for name in one.only] for one in alone}
        for one in alone:
            for contender in started[one.workload]:
                contender.wait()
        for one in alone:
            try:
                figures["workloads"][one.workload] = measured(one, started[one.workload], peak_flops(gpu["name"]))
            except SystemExit as error:
                figures["workloads"][one.workload] = {"error": str(error)}
            finally:
                for contender in started[one.workload]:
                    contender.close()
            figures["seconds"] = time.perf_counter() - began
            if args.to:
                args.to.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    if args.json:
        print(json.dumps(figures))
        return
    print(f"{gpu['name']}, {args.dtype}, {figures['seconds']:.0f} s in all")
    print(f"{args.rounds} rounds: median (lowest-highest)")
    Console(width=140).print(table(figures))


if __name__ == "__main__":
    main()
