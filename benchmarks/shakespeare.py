"""`gpt.shakespeare_char` against the same model and optimizer in plain PyTorch, on this machine's CPU.

    python benchmarks/shakespeare.py speed   [--rounds 10] [--steps 20] [--json]
    python benchmarks/shakespeare.py quality --text input.txt [--seeds 3]

speed: one training step of 12 × 64 characters (forward, backward, clipping, AdamW, float32), eager torch, torch.compile
and ours; `harness.py` says how they are measured. quality: 2,000 steps each, then the loss over all windows of the last
tenth of the text, which both read from the same shards; torch draws its training windows at random places, as nanoGPT
does, ours are those of the recipe.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import ROOT, Worker, Workers, compare, parser, show, trainer, work

sys.path.insert(0, str(ROOT))
RECIPE = "gpt.shakespeare_char"


def torch_model(seed: int) -> tuple[Any, Any]:
    """GPT-2's architecture without biases and dropout, as the recipe has it; and its optimizer."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]
    from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

    from contexture.configs import recipe
    from contexture.models.config import GptConfig

    run = recipe(RECIPE)
    c, o = run.model, run.optim
    assert isinstance(c, GptConfig)
    V, L, D, H, N = c.vocab, c.length, c.hidden, c.heads, c.layers
    norm = partial(nn.LayerNorm, D, c.eps, bias=False)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([norm(), norm()])
            self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
            self.up, self.down = nn.Linear(D, c.ffn, bias=False), nn.Linear(c.ffn, D, bias=False)

        def forward(self, x: Any) -> Any:
            rows, length, _ = x.shape
            parts = self.qkv(self.norms[0](x)).split(D, dim=2)
            q, k, v = (part.view(rows, length, H, D // H).transpose(1, 2) for part in parts)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(rows, length, D))
            return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(L, D)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(N)), norm()
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    small = name.endswith(("out.weight", "down.weight"))
                    nn.init.normal_(parameter, 0.0, c.init_std / math.sqrt(2 * N) if small else c.init_std)

        def forward(self, tokens: Any, next: Any) -> Any:
            x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = self.norm(x) @ self.tokens.weight.T
            return F.cross_entropy(logits.flatten(0, 1), next.flatten())

    torch.manual_seed(seed)
    model = Gpt()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": o.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return model, torch.optim.AdamW(groups, lr=o.peak_lr, betas=(o.b1, o.b2), eps=o.eps, fused=True)


def batches(count: int = 8) -> np.ndarray:
    """The same windows for everyone, i64 [count, 12, 65]."""
    return np.random.default_rng(0).integers(0, 65, (count, 12, 65))


def torch_worker(args: argparse.Namespace, *, compiled: bool) -> Worker:
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(args.threads)
    model, optimizer = torch_model(0)
    data = [(torch.from_numpy(x[:, :-1]), torch.from_numpy(x[:, 1:])) for x in batches()]
    loss_of: Callable[..., Any] = torch.compile(model) if compiled else model
    done = 0

    def steps(n: int) -> float:
        nonlocal done
        loss = torch.zeros(())
        for _ in range(n):
            loss = loss_of(*data[done % len(data)])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
        return loss.item()

    return steps, {"torch": torch.__version__, "parameters": sum(p.numel() for p in model.parameters())}


def ours(args: argparse.Namespace) -> Worker:
    from contexture.configs import recipe

    ones = np.ones((12, 64))
    weights = {"mask": ones, "next_weights": ones, "valid": ones[:, 0]}
    return trainer(recipe(RECIPE), [{"tokens": x[:, :-1], "next": x[:, 1:], **weights} for x in batches()])


WORKERS: Workers = {
    "torch": partial(torch_worker, compiled=False),
    "compiled": partial(torch_worker, compiled=True),
    "ours": ours,
}


# ------------------------------------------------------------------------------------------------------------- quality


def torch_loss(row: np.ndarray, dev: np.ndarray, seed: int) -> float:
    """2,000 steps on windows at random places, with the recipe's schedule; the mean loss over all windows of dev."""
    import torch  # pyright: ignore[reportMissingImports]

    from contexture.configs import recipe
    from contexture.train.optim.optimizers import learning_rate

    run = recipe(RECIPE)
    torch.set_num_threads(2)
    model, optimizer = torch_model(seed)
    B, L, draw = run.data.batch, run.data.length, np.random.default_rng(seed)
    for step in range(run.steps):
        for group in optimizer.param_groups:
            group["lr"] = float(learning_rate(run.optim, run.steps, np.int32(step)))  # pyright: ignore
        starts = draw.integers(0, len(row) - L, B)
        windows = torch.from_numpy(np.stack([row[s : s + L + 1] for s in starts]))
        loss = model(windows[:, :-1], windows[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip)
        optimizer.step()
        optimizer.zero_grad()
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(dev) - 1, L):
            window = torch.from_numpy(dev[start : start + L + 1])[None]
            total += model(window[:, :-1], window[:, 1:]).item() * (window.shape[1] - 1)
    return total / (len(dev) - 1)


def quality(args: argparse.Namespace) -> dict[str, Any]:
    import contexture
    from contexture.cli.main import main
    from contexture.data.pretraining.lm_windows import TokenStream
    from contexture.data.pretraining.shards import Shards

    losses: dict[str, list[float]] = {"ours": [], "torch": []}
    with tempfile.TemporaryDirectory() as folder:
        rows: dict[str, np.ndarray] = {}
        for seed in range(args.seeds):
            run = Path(folder) / str(seed)
            words = ["pretrain", RECIPE, "--dir", str(run), "--data.path", args.text, "--seed", str(seed)]
            if main(words):
                raise SystemExit("our training failed; see its words above")
            losses["ours"].append(contexture.evaluate(run)["metrics"]["loss"])
            shards = Shards.open(run / "data")
            for split in ("train", "dev"):
                row = TokenStream(shards, split)
                rows[split] = row.read(np.array([0]), np.array([row.tokens])).astype(np.int64)
            losses["torch"].append(torch_loss(rows["train"], rows["dev"], seed))
            print({name: values[-1] for name, values in losses.items()}, file=sys.stderr)
    means = {name: statistics.mean(values) for name, values in losses.items()}
    return {"losses": losses, "means": means, "ours above torch": means["ours"] - means["torch"]}


def main() -> None:
    options = parser(__doc__, WORKERS, steps=20, one_arena=False)
    options.add_argument("what", choices=("speed", "quality"))
    options.add_argument("--text", default="input.txt")
    options.add_argument("--seeds", type=int, default=3)
    args = options.parse_args()
    if args.worker:
        work(args, WORKERS)
    elif args.what == "quality":
        print(json.dumps(quality(args)))
    else:
        result = compare(args, [("ours", "torch"), ("ours", "compiled"), ("compiled", "torch")], 12 * 64)
        show(args, result, "GPT, 4 layers of 128, 12 x 64 characters")


if __name__ == "__main__":
    main()
