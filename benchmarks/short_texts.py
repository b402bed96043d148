"""Fine-tuning on, predicting and embedding texts of many lengths: ours against transformers on torch.

A BERT of 6 layers of width 384 (`--size base`: BERT-base's) classifies 4,096 made texts, of 3 to 90 words and half of
them below 14; with `--texts long` 512 of 100 to 480 words. Every batch of torch is padded to its own longest text, as
transformers' DataCollatorWithPadding does. The contenders:

    torch     finetune: BertForSequenceClassification with that collator and AdamW; predict: the pipeline
    sorted    predict and embed: a plain torch loop over batches that are sorted by length
    ours      the step, `predict` and `embed` of a run, from texts to answers

`harness.py` says how they are measured. A "token" of the table is a text.

    python benchmarks/short_texts.py --what finetune|predict|embed --batch 32 --rounds 8 [--json]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import Worker, Workers, compare, parser, show, work

PEAK_LR, WORDS = 1e-4, 4000
SIZES = {"small": (6, 384, 6, 1536), "base": (12, 768, 12, 3072)}
"""Layers, width, heads, feed-forward width."""
TEXTS = {"short": (4096, 2.6, 0.6, 3, 90, 128), "long": (512, 5.4, 0.4, 100, 480, 512)}
"""How many texts, mean and deviation of the logarithm of their words, the fewest and the most, the model's length."""


def texts(kind: str) -> tuple[list[str], list[int]]:
    """The same texts and classes for everyone."""
    random, (count, mean, deviation, fewest, most, _) = np.random.default_rng(0), TEXTS[kind]
    lengths = np.clip(np.exp(random.normal(mean, deviation, count)), fewest, most).astype(int)
    made = [" ".join(f"w{number}" for number in random.integers(0, WORDS, length)) for length in lengths]
    return made, [int(text[1:].partition(" ")[0]) % 2 for text in made]


def write_vocabulary(folder: Path) -> list[str]:
    """Writes vocab.txt: the special tokens and the texts' words."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(WORDS))]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", "utf-8")
    return vocabulary


def published(folder: Path, args: argparse.Namespace) -> tuple[Any, Any]:
    """A model with random parameters and its tokenizer, written as transformers writes them."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    vocabulary = write_vocabulary(folder)
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))  # pyright: ignore[reportAttributeAccessIssue]
    layers, hidden, heads, ffn = SIZES[args.size]
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=ffn, max_position_embeddings=TEXTS[args.texts][-1], num_labels=2,  # pyright: ignore[reportCallIssue]
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def torch_worker(args: argparse.Namespace, *, by_length: bool) -> Worker:
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(args.threads)
    model, tokenizer = published(Path(tempfile.mkdtemp()), args)
    given, classes = texts(args.texts)
    facts = {"torch": torch.__version__, "transformers": transformers.__version__}
    if args.what == "finetune":
        optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, fused=args.torch_adamw == "fused")
        encoded = [{**tokenizer(text), "labels": label} for text, label in zip(given, classes, strict=True)]
        collate = transformers.DataCollatorWithPadding(tokenizer)
        random, model = np.random.default_rng(1), model.train()

        def train(n: int) -> float:
            loss = torch.zeros(())
            for _ in range(n):
                loss = model(**collate([encoded[i] for i in random.choice(len(given), args.batch, False)])).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            return loss.item()

        return train, facts
    model = model.eval()
    if not by_length:
        answer = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
        return lambda n: len(answer(given[: n * args.batch], batch_size=args.batch)), facts

    def compute(n: int) -> float:
        own = tokenizer(given[: n * args.batch])["input_ids"]
        order = sorted(range(len(own)), key=lambda i: len(own[i]))
        answers: list[Any] = [None] * len(own)
        with torch.inference_mode():
            for first in range(0, len(order), args.batch):
                numbers = order[first : first + args.batch]
                batch = tokenizer.pad({"input_ids": [own[i] for i in numbers]}, return_tensors="pt")
                if args.what == "predict":
                    result = model(**batch).logits.softmax(-1).tolist()
                else:
                    mask = batch["attention_mask"][..., None]
                    result = ((model.bert(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)).numpy()
                for i, row in zip(numbers, result, strict=True):
                    answers[i] = row
        return float(len(answers))

    return compute, facts


def ours(args: argparse.Namespace) -> Worker:
    folder = Path(tempfile.mkdtemp())
    published(folder / "hf", args)
    import jax

    import contexture

    run = contexture.import_model("hf", folder / "hf", folder / "run")
    given, classes = texts(args.texts)
    facts = {"jax": jax.__version__}
    if args.what == "finetune":
        return tuner(args, folder, run), facts
    model = contexture.open(run)
    if args.what == "predict":
        return lambda n: len(model.predict(given[: n * args.batch])), facts
    return lambda n: len(model.embed(given[: n * args.batch], pool="mean", batch=args.batch)), facts


def task(args: argparse.Namespace, folder: Path, tokenizer: Any) -> tuple[Any, Any, Any]:
    """The fine-tuning on the texts: its run, its training batches and its labels."""
    from contexture.data.config import DataConfig, TaskConfig
    from contexture.data.tasks.batch.training_batches import TaskBatches
    from contexture.data.tasks.encode.encode_examples import encode
    from contexture.models.config import BertConfig
    from contexture.train.settings.run import Run
    from contexture.train.settings.sections import OptimConfig

    given, classes = texts(args.texts)
    rows = "".join(f"{text}\t{label}\n" for text, label in zip(given, classes, strict=True))
    (folder / "train.tsv").write_text("text\tlabel\n" + rows, "utf-8")
    given_task = TaskConfig(kind="classify", train=(str(folder / "train.tsv"),))
    store = encode(given_task, tokenizer, folder / "data")
    length, (layers, hidden, heads, ffn) = TEXTS[args.texts][-1], SIZES[args.size]
    data = DataConfig(batch=args.batch, length=length, max_predictions=1)
    run = Run(
        model=BertConfig(
            vocab=tokenizer.size, layers=layers, hidden=hidden, heads=heads, ffn=ffn, length=length, dtype=args.dtype
        ),
        data=data, task=given_task, optim=OptimConfig(name="adamw", schedule="linear", warmup=10, peak_lr=PEAK_LR),
    )  # fmt: skip
    return run, TaskBatches(store, tokenizer, data, given_task, family="bert", seed=0), store.labels


def tuner(args: argparse.Namespace, folder: Path, source: Any) -> Any:
    """Our fine-tuning step over a run's own batches."""
    import jax

    from contexture.train import mesh as meshes
    from contexture.train.checkpoints.transfer import model_of
    from contexture.train.objectives import batch_fields, objective_of
    from contexture.train.programs import step_settings
    from contexture.train.run.vocabulary import read_tokenizer
    from contexture.train.settings.run_file import read
    from contexture.train.settings.sections import MeshConfig
    from contexture.train.step import create, train_step

    run, batches, labels = task(args, folder, read_tokenizer(Path(source), read(Path(source))))
    mesh, fields = meshes.build(MeshConfig()), batch_fields(run)
    model = model_of(run, labels)
    with meshes.use(mesh, run.model.dtype):
        state, settings = create(model, run, mesh)[0](run.seed), step_settings(run)
        step = train_step(model, objective_of(run), run, mesh)
        # A program for each number of rows.
        for height in batches.rows.heights(args.batch):
            number = next(n for n in range(10_000) if batches.packing(n).rows == height)
            state, _ = step(state, meshes.shard_batch(mesh, batches.read(number), fields, args.batch), settings)
    done = 0

    def train(n: int) -> float:
        nonlocal state, done
        measured: Any = {"loss": 0.0}
        with meshes.use(mesh, run.model.dtype):
            for _ in range(n):
                batch = meshes.shard_batch(mesh, batches.read(done), fields, args.batch)
                state, measured = step(state, batch, settings)
                done += 1
        jax.block_until_ready(state)
        return float(measured["loss"])

    return train


WORKERS: Workers = {
    "torch": lambda args: torch_worker(args, by_length=False),
    "sorted": lambda args: torch_worker(args, by_length=True),
    "ours": ours,
}


def main() -> None:
    options = parser(__doc__, WORKERS, steps=32, one_arena=False)
    options.add_argument("--what", choices=("finetune", "predict", "embed"), default="finetune")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--texts", choices=tuple(TEXTS), default="short")
    options.add_argument("--size", choices=tuple(SIZES), default="small")
    args = options.parse_args()
    without = {"finetune": "sorted", "embed": "torch"}.get(args.what)
    args.only = [name for name in args.only if name != without]
    if args.worker:
        work(args, WORKERS)
        return
    pairs = [("ours", "torch"), ("ours", "sorted"), ("sorted", "torch")]
    result = {"what": args.what, "batch": args.batch, **compare(args, pairs, args.batch)}
    show(args, result, f"{args.what} {args.texts} texts, batches of {args.batch}; texts a second")


if __name__ == "__main__":
    main()
