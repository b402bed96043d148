"""What each layer of a backbone counts for a task: the weights that its head has learned to mix them with."""

import statistics
from pathlib import Path
from typing import Any

from contexture.data.errors import DataError
from contexture.models.heads.layer_mix import learned_mixes
from contexture.train.config import Run
from contexture.train.errors import ConfigError
from contexture.train.run_file import read

Row = dict[str, Any]


def layers(runs: list[Path], load: Any) -> list[Row]:
    """A row for each run and mix: {"run", "task", "seed", "place", "weights", "gamma"}; load: a folder → model, params,
    tokenizer. Raises ConfigError for a run without a mix."""
    rows = []
    for folder in runs:
        run = read(folder).run
        if run.head.mix != "all":
            raise ConfigError(f"{folder} mixes no layers; give runs fine-tuned with --head.mix all")
        for place, mix in learned_mixes(load(folder)[1]).items():
            rows.append({"run": str(folder), "task": _task(run), "seed": run.seed, "place": place, **mix})
    return rows


def _task(run: Run) -> str:
    """A name for people: that of the task, or its kind and its file's, with that of the folder."""
    if run.task.name != "off":
        return run.task.name
    file = Path(run.task.train[0])
    return f"{run.task.kind} {file.parent.name}/{file.stem}"


def check_figure(file: Path) -> None:
    """Raises DataError where no figure can be written."""
    if file.suffix not in (".png", ".svg"):
        raise DataError(f"{file}: a figure ends in .png or .svg; give such a name")
    if not file.parent.is_dir():
        raise DataError(f"{file}: its folder is not there; make it, or give another name")


def draw(rows: list[Row], file: Path) -> None:
    """A bar for each layer and task, the mean over its runs, and a line from the least to the most."""
    from matplotlib.figure import Figure

    groups: dict[str, list[list[float]]] = {}
    for row in rows:
        groups.setdefault(f"{row['task']}\n({row['place']})", []).append(row["weights"])
    most = max(len(weights) for group in groups.values() for weights in group)
    figure = Figure(figsize=(2.0 + 1.6 * len(groups), 3.6), dpi=160, layout="constrained")
    axes = figure.subplots()
    colours = ("#9db7d5", "#4a7ebb", "#1f4e8c", "#12305a")
    for n in range(most):
        places, means, below, above = [], [], [], []
        for at, group in enumerate(groups.values()):
            shares = [weights[n] for weights in group if n < len(weights)]
            if shares:
                mean = statistics.mean(shares)
                places.append(at + (n - (most - 1) / 2) * 0.8 / most)
                means.append(mean)
                below.append(mean - min(shares))
                above.append(max(shares) - mean)
        name = "words" if n == 0 else f"layer {n}"
        axes.bar(places, means, 0.75 / most, yerr=(below, above), label=name, color=colours[n % 4], capsize=2)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel("share in the mix")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, ncols=most)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(file)
