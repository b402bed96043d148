"""ELMo's training step against PyTorch's own LSTM with a projection, at the size of the small published model.

    python benchmarks/elmo_step.py [--text FILE_OR_FOLDER]

Cells 1024, projected to 128, two layers each way with a skip, 2,048 character filters, one highway layer, 32 lanes of
20 words, 8,192 negatives, Adagrad on the gradient times 20, clipped at 10; batches of the text given (else of the
demo's), states carried. `torch` runs the character network over every word, as one would write it; `torch_once` over
the batch's distinct words, as here; `ours_every` is ours over every word. torch's LSTM knows no clips, which ours has;
its forget gate's 1 is in its bias.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import ROOT, Worker, Workers, compare, parser, show, torch_steps, trainer, work

VOCABULARY, TYPES, STEPS = 30_000, 640, 40


def settings() -> Any:
    """The run that is timed."""
    import dataclasses

    from contexture.configs import recipe

    run = recipe("elmo.small")
    data = dataclasses.replace(run.data, batch=32, word_types=TYPES, word_splitter="punctuation", split_sentences=True)
    return dataclasses.replace(run, model=dataclasses.replace(run.model, vocab=VOCABULARY), data=data)


def batches(args: argparse.Namespace) -> list[dict[str, np.ndarray]]:
    """The first steps of a run on the text."""
    import dataclasses

    from contexture.data.pretraining.bilm_lanes import LaneBatches
    from contexture.data.pretraining.tokenize_corpus import prepare
    from contexture.data.text.sources import expand, texts
    from contexture.data.tokenizers.registry import learn

    with tempfile.TemporaryDirectory() as folder:
        if not args.text:
            sys.path.insert(0, str(ROOT / "examples"))
            from tutorial_text import library, split, write_text  # pyright: ignore[reportMissingImports]

            write_text(Path(folder) / "text", split(list(library()))["rest"])
        data = dataclasses.replace(settings().data, path=(args.text or f"{folder}/text",))
        tokenizer = learn("words", texts(expand(data.path, "--text")), VOCABULARY, False, data.word_splitter)
        shards = prepare(data, tokenizer, Path(folder) / "shards", stream=settings().stream)
        lanes = LaneBatches(shards, data, seed=0)
        read = [lanes.read(step) for step in range(STEPS)]
    return [batch for batch in read if len(batch["types"]) == TYPES]


def torch_words(config: Any) -> Any:
    """The character CNN: types [R, 50] → [R, projection]."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]
    from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

    width = sum(count for _, count in config.filters)

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.characters = nn.Embedding(262, config.char_width, padding_idx=0)
            self.filters = nn.ModuleList(nn.Conv1d(config.char_width, count, size) for size, count in config.filters)
            self.highways = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(config.highway))
            self.projection = nn.Linear(width, config.projection)

        def forward(self, types: Any) -> Any:
            x = self.characters(types).transpose(1, 2)
            x = torch.cat([F.relu(conv(x).amax(-1)) for conv in self.filters], -1)
            for highway in self.highways:
                gate, transformed = highway(x).chunk(2, -1)
                gate = torch.sigmoid(gate)
                x = gate * F.relu(transformed) + (1 - gate) * x
            return self.projection(x)

    return Words()


def torch_bilm(config: Any, *, once: bool) -> Any:
    """The language model of both directions: a batch → its loss. once: each distinct word is read once."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]
    from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

    J, U = config.projection, config.cells

    class BiLm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch_words(config)
            self.stacks = nn.ModuleList(
                nn.ModuleList(nn.LSTM(J, U, proj_size=J, batch_first=True) for _ in range(2)) for _ in range(2)
            )
            self.softmax, self.bias = (
                nn.Parameter(torch.randn(config.vocab, J) / math.sqrt(J)),
                nn.Parameter(torch.zeros(config.vocab)),
            )
            for stack in self.stacks:
                for lstm in stack:  # pyright: ignore[reportGeneralTypeIssues]
                    lstm.bias_ih_l0.data[U : 2 * U] += 1.0
            self.state: Any = [[None, None], [None, None]]

        def log_expected(self, words: Any, tries: float) -> Any:
            p = torch.log1p(1 / (words + 1.0)) / math.log(config.vocab + 1.0)
            return torch.log(-torch.expm1(tries * torch.log1p(-p)))

        def forward(self, batch: dict[str, Any]) -> Any:
            words = self.words(batch["types"]) if once else None
            total = 0.0
            for d, suffix in enumerate(("", "_backward")):
                index = batch["index" + suffix]
                x = (
                    self.words(batch["types"][index.reshape(-1)]).reshape(*index.shape, J)
                    if words is None
                    else (words[index])
                )
                for n in range(2):
                    x = F.dropout(x, config.dropout)
                    y, state = self.stacks[d][n](x, self.state[d][n])  # pyright: ignore[reportIndexIssue]
                    self.state[d][n] = tuple(part.detach() for part in state)
                    x = x + y if n else y
                x = F.dropout(x, config.dropout).reshape(-1, J)
                target, negatives, tries = batch["next" + suffix].reshape(-1), batch["negatives"][d], batch["tries"][d]
                label = (x * self.softmax[target]).sum(-1) + self.bias[target] - self.log_expected(target, tries)
                others = x @ self.softmax[negatives].T + (self.bias[negatives] - self.log_expected(negatives, tries))
                others = others.masked_fill(negatives[None] == target[:, None], -math.inf)
                logits = torch.cat([label[:, None], others], 1)
                total = total + F.cross_entropy(logits, torch.zeros_like(target)) / 2
            return total

    return BiLm()


def torch_worker(args: argparse.Namespace, *, once: bool) -> Worker:
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = torch_bilm(settings().model, once=once)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2, initial_accumulator_value=1.0, eps=0.0, foreach=True)
    data = [{name: torch.from_numpy(x).long() if x.dtype == np.int32 else torch.from_numpy(x) for name, x in b.items()}
            for b in batches(args)]  # fmt: skip
    steps = torch_steps(model, model, optimizer, 10.0, data, scale=20.0)
    return steps, {"torch": torch.__version__, "parameters": sum(p.numel() for p in model.parameters())}


def ours(args: argparse.Namespace, *, once: bool) -> Worker:
    def every_word(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same, each word of either direction read for itself."""
        read = np.stack([batch["index"], batch["index_backward"]])
        index, index_backward = np.arange(read.size, dtype=np.int32).reshape(read.shape)
        return {**batch, "types": batch["types"][read.reshape(-1)], "index": index, "index_backward": index_backward}

    drawn = batches(args)
    return trainer(settings(), drawn if once else [every_word(batch) for batch in drawn])


WORKERS: Workers = {
    "torch": partial(torch_worker, once=False),
    "torch_once": partial(torch_worker, once=True),
    "ours_every": partial(ours, once=False),
    "ours": partial(ours, once=True),
}


def main() -> None:
    options = parser(__doc__, WORKERS, steps=4, one_arena=True)
    options.add_argument("--text", default="", help="a text file, or a folder of such")
    args = options.parse_args()
    if args.worker:
        work(args, WORKERS)
        return
    pairs = [("ours", "torch"), ("ours", "torch_once"), ("torch_once", "torch"), ("ours", "ours_every")]
    result = compare(args, pairs, 32 * 20)
    title = "ELMo, cells 1024, projected to 128, 32 lanes of 20 words each way (words of one direction a second)"
    show(args, result, title)


if __name__ == "__main__":
    main()
