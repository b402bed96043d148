"""Fine-tune a model, evaluate it, and use it, in one page of Python.

    python examples/finetune.py FOLDER [RUN]

FOLDER gets the runs. RUN is the run to begin from, such as one that `contexture import` made of a published model;
without it a tiny BERT is pretrained first, on the examples' own texts. The examples are made up: replace `examples()`
by (text, label) rows of your own, or give files instead: train="train.tsv".
"""

import random
import sys
from pathlib import Path

import contexture

PLACES = {"kitchen": "oven pan spoon kettle", "garden": "tree hedge lawn pond", "office": "desk printer folder stapler"}
SENTENCES = ("the {} is next to the {}", "please look for the {} behind the {}", "who has moved the {} and the {}")


def examples(count: int, seed: int) -> list[tuple[str, str]]:
    """Returns rows of (text, label): which place is a sentence about?"""
    rng, rows = random.Random(seed), []
    for _ in range(count):
        place, things = rng.choice(list(PLACES.items()))
        rows.append((rng.choice(SENTENCES).format(*rng.sample(things.split(), 2)), place))
    return rows


def pretrained(folder: Path) -> Path:
    """Returns a tiny BERT, trained for a few steps on the texts of examples."""
    text = folder / "text.txt"
    text.parent.mkdir(parents=True, exist_ok=True)
    text.write_text("\n".join(text for text, _ in examples(500, seed=1)) + "\n", encoding="utf-8")
    options = {"dir": folder / "bert", "data.path": text, "data.length": 32, "data.max_predictions": 5, "steps": 300}
    return contexture.pretrain("bert.tiny", options | {"data.batch": 16, "model.vocab": 200, "model.init_std": 0.08})


def main(folder: Path, source: Path | None) -> None:
    run = contexture.finetune(
        source or pretrained(folder),
        "classify",
        train=examples(600, seed=2),
        dev=examples(60, seed=3),
        dir=folder / "places",
        options={"epochs": 5, "data.batch": 16, "data.length": 32, "optim.name": "adamw", "optim.peak_lr": 1e-3},
    )
    result = contexture.evaluate(run)
    print(f"accuracy on {result['examples']} held-out examples: {result['metrics']['accuracy']:.1%}")
    model = contexture.open(run)  # stays loaded, for any number of calls
    for answer in model.predict(["the spoon is in the pan", "a pond with a hedge"]):
        print(answer["prediction"], {label: round(score, 3) for label, score in answer["scores"].items()})


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: python examples/finetune.py FOLDER [RUN]")
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else None)
