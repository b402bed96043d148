"""One BERT training step, ours against transformers on torch, on this machine's CPU: `make bench`.

A step is forward (masked words and next sentence, dropout 0.1), backward, global-norm clip and AdamW, in float32 or
with `--dtype bfloat16` (torch's autocast). The contenders:

    torch     BertForPreTraining as its users run it: labels and softmax at all positions
    gathered  the same model, its masked-word head at the 20 prediction slots alone
    ours      the recipe's own step (gathered slots)

`harness.py` says how they are measured.

    python benchmarks/bert_step.py --size small --batch 16 --rounds 10 [--json] [--plain-malloc]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from harness import Worker, Workers, compare, parser, show, torch_steps, trainer, work

# layers, hidden, heads, ffn
SIZES = {
    "tiny": (2, 128, 2, 512),
    "prototype": (4, 256, 4, 1024),
    "small": (4, 512, 8, 2048),
    "medium": (8, 512, 8, 2048),
    "base": (12, 768, 12, 3072),
    "large": (24, 1024, 16, 4096),
}
VOCAB, DROPOUT, PEAK_LR, DECAY, CLIP = 30522, 0.1, 1e-4, 0.01, 1.0


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


def torch_worker(args: argparse.Namespace, *, gathered: bool, compiled: bool = False) -> Worker:
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

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
    )
    model = model.train().to(args.platform)
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
        rows = torch.arange(args.batch, device=args.platform)[:, None]
        scores = model.cls.predictions(encoded.last_hidden_state[rows, batch["slots"]])
        is_random = model.cls.seq_relationship(encoded.pooler_output)
        cross_entropy = torch.nn.functional.cross_entropy
        return cross_entropy(scores.flatten(0, 1), batch["words"].flatten()) + cross_entropy(
            is_random, batch["is_random"]
        )

    loss_of = loss_gathered if gathered else loss_all
    steps = torch_steps(model, torch.compile(loss_of) if compiled else loss_of, optimizer, CLIP, data, dtype=args.dtype)
    facts = {"torch": torch.__version__, "transformers": transformers.__version__}
    return steps, {**facts, "parameters": sum(p.numel() for p in model.parameters()), "optimizer": args.torch_adamw}


def named(args: argparse.Namespace) -> list[dict[str, np.ndarray]]:
    """The batches, by the names of our fields."""
    more = {"valid": np.ones(args.batch)}
    return [{**b, "labels": b["words"], "slot_weights": b["weights"], **more} for b in batches(args)]


def ours(args: argparse.Namespace) -> Worker:
    from contexture.data.config import DataConfig
    from contexture.models.config import BertConfig
    from contexture.train.settings.run import Run
    from contexture.train.settings.sections import OptimConfig

    layers, hidden, heads, ffn = SIZES[args.size]
    run = Run(
        model=BertConfig(vocab=VOCAB, layers=layers, hidden=hidden, heads=heads, ffn=ffn, dtype=args.dtype),
        data=DataConfig(batch=args.batch, length=args.length, max_predictions=args.predictions),
        optim=OptimConfig(name="adamw", schedule="linear", warmup=10_000),
    )
    return trainer(run, named(args))


WORKERS: Workers = {
    "torch": lambda args: torch_worker(args, gathered=False),
    "gathered": lambda args: torch_worker(args, gathered=True),
    "ours": ours,
}


def main() -> None:
    options = parser(__doc__, WORKERS, steps=4, one_arena=True)
    options.add_argument("--size", choices=SIZES, default="small")
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--length", type=int, default=128)
    options.add_argument("--predictions", type=int, default=20)
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="torch: of its autocast")
    args = options.parse_args()
    if args.worker:
        work(args, WORKERS)
        return
    pairs = [("ours", "torch"), ("ours", "gathered"), ("gathered", "torch")]
    layers, hidden, heads, ffn = SIZES[args.size]
    result = {
        "model": {"size": args.size, "layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "vocab": VOCAB},
        "step": {name: getattr(args, name) for name in ("batch", "length", "predictions")},
        **compare(args, pairs, args.batch * args.length),
    }
    show(args, result, f"BERT {args.size} ({layers} layers, {hidden}), batch {args.batch} x {args.length}")


if __name__ == "__main__":
    main()
