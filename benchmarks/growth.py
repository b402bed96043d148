"""Time and memory of a step, of `embed` and of `prepare`, as what they work on grows: linear where it should be?

    step by length        a GPT of 4 layers of 128, 8,192 tokens a step in sequences of 128 to 2,048
    step by layers        the same, 2 to 32 layers, sequences of 128
    step by vocabulary    the same, 1,024 to 131,072 words
    embed by texts        BERT tiny, 64 to 100,000 texts of 3 to 90 words
    prepare by corpus     10 MB to 1 GB of text, tokenised into shards

Each point is a process of its own: the median time of five steps, or the time of one call, and the most memory that the
process and its children had. The slope is that of the last two points in a log-log plot: 1 is linear, 0 does not grow.
A step by length has a part that grows with the pairs of attention; nothing else should be above 1.

    python benchmarks/growth.py [--only "step by length"] [--json growth.json] [--figure growth.svg]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOKENS, DRAWS = 8192, 5
"""The tokens of a step; the steps that are timed."""
GROWS: dict[str, tuple[int, ...]] = {
    "step by length": (128, 256, 512, 1024, 2048),
    "step by layers": (2, 4, 8, 16, 32),
    "step by vocabulary": (1024, 8192, 32_768, 131_072),
    "embed by texts": (64, 1000, 10_000, 100_000),
    "prepare by corpus": (10, 100, 1000),
}
UNITS = {"step by length": "tokens", "step by layers": "layers", "step by vocabulary": "words",
         "embed by texts": "texts", "prepare by corpus": "MB"}  # fmt: skip


def step(name: str, size: int) -> float:
    """Returns the seconds of a training step."""
    import numpy as np
    from harness import trainer

    from contexture import recipe

    sizes = {"length": 128, "layers": 4, "vocabulary": 8192, name.rpartition(" ")[2]: size}
    length, words = sizes["length"], sizes["vocabulary"]
    rows, random = TOKENS // length, np.random.default_rng(0)
    run = recipe("gpt.tiny", {
        "model.layers": sizes["layers"], "model.length": length, "model.vocab": words, "data.batch": rows,
        "data.length": length,
    })  # fmt: skip
    tokens, full = random.integers(0, words, (rows, length)), np.ones((rows, length), np.float32)
    batch = {"tokens": tokens, "next": np.roll(tokens, -1, 1), "next_weights": full, "mask": full, "valid": full[:, 0]}
    steps, _ = trainer(run, [batch])
    steps(2)
    return statistics.median(_seconds(lambda: steps(1)) for _ in range(DRAWS))


def embed(size: int) -> float:
    """Returns the seconds of one call."""
    import numpy as np

    import contexture

    with tempfile.TemporaryDirectory() as folder:
        texts = _texts(np.random.default_rng(0), size)
        (Path(folder) / "text.txt").write_text("\n".join(_texts(np.random.default_rng(1), 2000)) + "\n", "utf-8")
        options = {"data.path": f"{folder}/text.txt", "dir": f"{folder}/run", "steps": 1, "model.vocab": 2000}
        model = contexture.open(contexture.pretrain("bert.tiny", options))
        model.embed(texts[:64], pool="mean")
        return _seconds(lambda: model.embed(texts, pool="mean"))


def prepare(size: int) -> float:
    """Returns the seconds of a corpus of so many megabytes."""
    import numpy as np

    from contexture.configs import recipe
    from contexture.data.pretraining import tokenize_corpus
    from contexture.data.tokenizers.registry import learn

    with tempfile.TemporaryDirectory() as folder:
        texts = _texts(np.random.default_rng(0), 40_000)
        block = ("\n".join(texts) + "\n").encode()
        with (Path(folder) / "corpus.txt").open("wb") as file:
            for first in range(0, size * 10**6, len(block)):
                file.write(block[: size * 10**6 - first])
        run = recipe("gpt.tiny")
        config = run.data.__class__(path=(f"{folder}/corpus.txt",), vocabulary="byte-bpe", documents="files")
        tokenizer = learn("byte-bpe", texts[:4000], 4000, False)
        return _seconds(lambda: tokenize_corpus.prepare(config, tokenizer, f"{folder}/shards", stream="windows"))


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _texts(random: Any, count: int) -> list[str]:
    """Texts of 3 to 90 words, half of them below 14, of 4,000 words by Zipf's law."""
    import numpy as np

    lengths = np.clip(np.exp(random.normal(2.6, 0.6, count)), 3, 90).astype(int)
    return [" ".join(f"w{n}" for n in np.exp(random.random(length) * math.log(4000)).astype(int)) for length in lengths]


def point(name: str, size: int) -> dict[str, float]:
    """A process's life: one point."""
    seconds = (
        step(name, size) if name.startswith("step") else {"embed": embed, "prepare": prepare}[name.split()[0]](size)
    )
    # Kilobytes on Linux.
    peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"size": size, "seconds": seconds, "bytes": peak * 1024}


def slope(points: list[dict[str, float]], of: str) -> float:
    if len(points) < 2:
        return math.nan
    a, b = points[-2:]
    return math.log(b[of] / a[of]) / math.log(b["size"] / a["size"])


def draw(figures: dict[str, list[dict[str, float]]], to: str) -> None:
    """Two rows: time above memory, both log-log, with what linear growth from the first point would be."""
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(2, len(figures), figsize=(3 * len(figures), 5.4), squeeze=False, layout="constrained")
    for column, (name, points) in enumerate(figures.items()):
        for row, (of, unit, scale) in enumerate((("seconds", "s", 1.0), ("bytes", "GiB", 2.0**-30))):
            sizes, values = [p["size"] for p in points], [p[of] * scale for p in points]
            ax = axes[row, column]
            ax.loglog(sizes, values, "o-", color="#1f5f8b")
            ax.loglog(sizes, [values[0] * size / sizes[0] for size in sizes], "--", color="#b0b0b0", label="linear")
            ax.set(xlabel=UNITS[name], ylabel=unit, title=f"{name}\nslope {slope(points, of):.2f}")
            ax.set_ylim(min(values) / 2, max(values) * 2)
    axes[0, 0].legend(frameon=False)
    fig.savefig(to)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", choices=GROWS, default=list(GROWS))
    options.add_argument("--most", type=int, default=0, help="sizes up to this one")
    options.add_argument("--json", type=Path)
    options.add_argument("--figure", default="")
    options.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.point:
        print(json.dumps(point(args.point[0], int(args.point[1]))))
        return
    figures: dict[str, list[dict[str, float]]] = {}
    for name in args.only:
        figures[name] = []
        for size in (size for size in GROWS[name] if not args.most or size <= args.most):
            command = [sys.executable, __file__, "--point", name, str(size)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
            figures[name].append(json.loads(done.stdout.splitlines()[-1]))
            found = figures[name][-1]
            print(
                f"{name}, {size:,} {UNITS[name]}: {found['seconds']:.3g} s, {found['bytes'] / 2**30:.2f} GiB",
                flush=True,
            )
        if len(figures[name]) > 1:
            print(f"{name}: slope of time {slope(figures[name], 'seconds'):.2f}, "
                  f"of memory {slope(figures[name], 'bytes'):.2f}", flush=True)  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    if args.figure:
        draw(figures, args.figure)


if __name__ == "__main__":
    main()
