"""The loss curve of a run as a picture."""

from collections.abc import Iterable
from pathlib import Path

from contexture.data.storage import atomic_file
from contexture.train.run.report import Record


def draw_loss(records: Iterable[Record], path: Path, baseline: float | None = None) -> None:
    """Draws the loss curve as a PNG: each step's loss faint, their running mean, the held-out loss, the baseline."""
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for record in records:
        for name in ("mlm_loss", "loss"):
            if record.get(name) is not None:
                curves.setdefault((record["split"], name), []).append((record["step"], record[name]))
    name = "mlm_loss" if ("train", "mlm_loss") in curves else "loss"
    train, held = curves.get(("train", name), []), curves.get(("dev", name), [])
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    if train:
        steps, losses = zip(*train, strict=True)
        axes.plot(steps, losses, color="#9db7d5", linewidth=0.7, label="training, each step")
        window = max(len(losses) // 50, 1)
        smooth, total = [], 0.0
        for i, value in enumerate(losses):
            total += value - (losses[i - window] if i >= window else 0.0)
            smooth.append(total / min(i + 1, window))
        axes.plot(steps, smooth, color="#1f4e8c", linewidth=1.8, label=f"training, mean of {window}")
    if held:
        axes.plot(*zip(*held, strict=True), "o-", color="#c2410c", markersize=5, label="held out")
    if baseline is not None:
        axes.axhline(baseline, color="#666666", linestyle="--", linewidth=1, label="unigram baseline, held out")
    axes.set(xlabel="step", ylabel="masked-token loss (nats)" if name == "mlm_loss" else "loss (nats)")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    with atomic_file(path) as part:
        figure.savefig(part, format="png")
