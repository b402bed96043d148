"""Greedy writing against transformers' `generate` with its cache: GPT-2 124M, random weights, this machine's CPU.

    python benchmarks/writing.py --lines 1 [--tokens 64] [--rounds 5] [--json]

A "step" is a whole batch of texts: `--lines` prompts of 32 tokens, `--tokens` written behind each. `harness.py` says
how they are measured; tokens/s are those written.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from harness import Worker, Workers, compare, parser, show, work

PROMPT = 32


def prompts(args: argparse.Namespace) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 50257, (args.lines, PROMPT))


def theirs(args: argparse.Namespace) -> Worker:
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()  # `generate` fits no type checker
    ids = torch.from_numpy(prompts(args))
    more = {"max_new_tokens": args.tokens, "min_new_tokens": args.tokens, "do_sample": False, "pad_token_id": 50256}

    def steps(n: int) -> float:
        with torch.no_grad():
            for _ in range(n):
                model.generate(ids, attention_mask=torch.ones_like(ids), **more)
        return 0.0

    return steps, {"torch": torch.__version__, "transformers": transformers.__version__}


def ours(args: argparse.Namespace) -> Worker:
    import jax

    from contexture.models import decode
    from contexture.models.config import GptConfig
    from contexture.models.families import build
    from contexture.train import cpu_memory

    cpu_memory.tune_cpu_allocator()
    config = GptConfig()
    batch = {"tokens": np.ones((1, 8), np.int32), "mask": np.ones((1, 8), np.int32)}
    params = jax.jit(build(config).init)(jax.random.key(0), batch)["params"]
    apart = jax.jit(decode.unstack_params, static_argnums=(1, 2))(params, config, config.vocab)
    tokens, mask = prompts(args).astype(np.int32), np.ones((args.lines, PROMPT), np.int32)
    keys, how = jax.random.split(jax.random.key(0), args.lines), decode.Sampling(temperature=0.0)
    bursts = (args.tokens - 1) // 8

    def steps(n: int) -> float:
        for _ in range(n):
            writing = decode.prefill(config, how, bursts * 8, apart, tokens, mask, keys)
            for _ in range(bursts):
                writing, more = decode.generate_tokens(config, how, 8, apart, writing)
                np.asarray(more)
        return 0.0

    return steps, {"jax": jax.__version__}


WORKERS: Workers = {"transformers": theirs, "ours": ours}


def main() -> None:
    options = parser(__doc__, WORKERS, steps=1, one_arena=True)
    options.add_argument("--lines", type=int, default=1)
    options.add_argument("--tokens", type=int, default=65, help="eight times a number, and one")
    args = options.parse_args()
    if args.worker:
        work(args, WORKERS)
        return
    result = compare(args, [("ours", "transformers")], args.lines * args.tokens)
    show(args, result, f"GPT-2 124M, {args.lines} texts of {args.tokens} tokens")


if __name__ == "__main__":
    main()
