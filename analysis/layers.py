"""Reports and draws the weights with which fine-tuned heads mix the layers of a backbone (Peters et al. 2018, section
3.2; figure 2)."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from contexture.analysis.results import LayerMix
from contexture.data.errors import DataError
from contexture.models.heads.layer_mix import learned_mixes
from contexture.models.shapes import Params
from contexture.train.errors import ConfigError
from contexture.train.run.folder import INPUTS
from contexture.train.run.plots import COLOURS, PICTURES, Theme, add_legend, add_title, new_figure, save_figure
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import read


def layers(runs: Sequence[Path], load_params: Callable[[Path], Params]) -> list[LayerMix]:
    """Returns the learned mixes of runs, by run and place.

    Args:
        runs: the runs' folders.
        load_params: folder → the parameters of its run.

    Raises:
        ConfigError: when a run mixes no layers.
    """
    mixes: list[LayerMix] = []
    for folder in runs:
        run = read(folder).run
        if not run.head.mixes:
            raise ConfigError(f"{folder} mixes no layers; give runs fine-tuned with --head.mix all or last-four")
        for place, mix in learned_mixes(load_params(folder)).items():
            count = len(mix["weights"])
            # `all` begins with the words' own layer, `last-four` ends with the last one.
            first = run.model.layers + 1 - count if run.head.mix == "last-four" else 0
            mixes.append(
                {
                    "run": str(folder),
                    "task": _task(run, folder),
                    "seed": run.seed,
                    "place": place,
                    "layers": list(range(first, first + count)),
                    **mix,
                }
            )
    return mixes


def _task(run: Run, folder: Path) -> str:
    """Returns a task's name for people: its own, else its kind with the folder and the file of its training set, or,
    where examples were given in Python, with the folder of the run."""
    if run.task.name != "off":
        return run.task.name
    file = Path(run.task.train[0])
    if file.parent.name == INPUTS:
        return f"{run.task.kind} {folder.name}"
    return f"{run.task.kind} {file.parent.name}/{file.stem}"


def check_figure(file: Path) -> None:
    """Raises: DataError for a path where no figure can be written."""
    if file.suffix not in PICTURES:
        raise DataError(f"{file}: a figure ends in .png, .svg or .pdf; give such a name")
    if not file.parent.is_dir():
        raise DataError(f"{file}: its folder is not there; make it, or give another name")


def draw(mixes: Sequence[LayerMix], file: Path, theme: Theme = "light") -> None:
    """Draws a bar for each layer and task: the mean over runs, with the standard deviation over several seeds as an
    error bar; a line shows equal weights, with which training begins."""
    groups: dict[str, list[dict[int, float]]] = {}
    for mix in mixes:
        weights_of = dict(zip(mix["layers"], mix["weights"], strict=True))
        # A mix of the last four layers is another choice than one of all: their weights have no common mean.
        some = "" if mix["layers"][0] == 0 else f", layers {mix['layers'][0]} to {mix['layers'][-1]}"
        groups.setdefault(f"{mix['task']}\n({mix['place']}{some})", []).append(weights_of)
    # A figure may hold runs of several backbones: the deepest one decides how many bars a group has room for.
    layer_count = 1 + max(layer for mix in mixes for layer in mix["layers"])
    width = max(2.4 + max(1.6, 0.35 * layer_count) * len(groups), 5.6)
    figure, (axes,) = new_figure(width, 4.2, theme=theme)
    colours = COLOURS[theme]
    for layer in sorted({layer for mix in mixes for layer in mix["layers"]}):
        x, means, deviations = [], [], []
        for at, group in enumerate(groups.values()):
            weights = [run_weights[layer] for run_weights in group if layer in run_weights]
            if weights:
                # A group is 0.8 wide and centred on its tick.
                x.append(at + (layer - (layer_count - 1) / 2) * 0.8 / layer_count)
                means.append(statistics.mean(weights))
                deviations.append(statistics.stdev(weights) if len(weights) > 1 else 0.0)
        name = "words" if layer == 0 else f"layer {layer}"
        # Neighbouring layers differ in colour, and after the last colour in their hatching too.
        style = {"color": colours[layer % len(colours)], "hatch": "//" * (layer // len(colours)), "edgecolor": "none"}
        errors = {"yerr": deviations, "ecolor": colours[-1], "capsize": 2} if any(deviations) else {}
        axes.bar(x, means, 0.75 / layer_count, label=name, **style, **errors)
    for at, group in enumerate(groups.values()):
        label = "equal weights" if at == 0 else ""
        axes.hlines(1 / len(group[0]), at - 0.45, at + 0.45, colours[-1], "dashed", linewidth=1.2, label=label)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel("weight in the mix (all layers: 1)")
    axes.set_ylim(0, 1.5 * axes.dataLim.ymax)  # room for the legend above the bars
    runs = max(len(group) for group in groups.values())
    add_title(axes, "learned weights of the layers" + (", mean and deviation of runs" if runs > 1 else ""), theme)
    add_legend(axes, theme, ncols=min(layer_count + 1, max(int(width / 1.3), 2)), loc="upper right")
    save_figure(figure, file)
