"""`--grid FIELD=VALUE,VALUE …` and `--seeds N` among the arguments of finetune, and the table of a grid for people."""

import itertools
from collections.abc import Mapping, Sequence

from contexture.cli.argv import expand_aliases
from contexture.cli.option_model import ALIASES
from contexture.cli.output import Result
from contexture.cli.parse import option_names
from contexture.table_files import Cell, plus_minus
from contexture.train.errors import ConfigError
from contexture.train.grid.folder import RESULTS
from contexture.train.grid.results import GridResult, SettingResult, Spread, Spreads
from contexture.train.grid.settings import as_options, shown
from contexture.train.settings.run import Run, fields

_OF_KIND = {"classify": "accuracy", "choice": "accuracy", "tag": "accuracy", "regress": "pearson", "span": "f1"}
"""The metric that the table shows for each kind of task, besides the one that the best setting is chosen by."""


def wants_grid(argv: Sequence[str]) -> bool:
    """Returns whether arguments ask for several runs."""
    return any(word.partition("=")[0] in ("--grid", "--seeds") for word in argv)


def join_repeated(argv: Sequence[str], name: str) -> list[str]:
    """Returns the arguments with all values of a repeated option moved behind its first occurrence."""
    rest: list[str] = []
    values: list[str] = []
    first, takes = None, False
    for word in argv:
        if word == name or word.startswith(f"{name}="):
            first, takes = len(rest) if first is None else first, True
            values += [word.partition("=")[2]] if "=" in word else []
        elif takes and not word.startswith("--"):
            values.append(word)
        else:
            takes = False
            rest.append(word)
    return rest if first is None else [*rest[:first], name, *values, *rest[first:]]


def first_options(argv: Sequence[str]) -> list[str]:
    """Returns the first value of each field that --grid varies, as options, because other options may require them.

    Fields that --grid cannot vary, or that `argv` gives as well, are left to `make_grid`, which refuses them.
    """
    from contexture.grid_search import first_values

    at = argv.index("--grid") + 1 if "--grid" in argv else len(argv)
    words = list(itertools.takewhile(lambda word: not word.startswith("--"), argv[at:]))
    try:
        values = first_values(read_grid(words, Run()), option_names(expand_aliases(list(argv))))
    except ConfigError:
        return []
    options: list[str] = []
    for name, value in values.items():
        section, dot, last = name.replace("_", "-").rpartition(".")
        if isinstance(value, bool):
            options.append(f"--{section}{dot}{'' if value else 'no-'}{last}")
        else:
            options += [f"--{section}{dot}{last}", *shown(value).split()]
    return options


def read_grid(words: Sequence[str], run: Run) -> dict[str, tuple[object, ...]]:
    """Returns the values of each field that --grid varies, typed as the run has them.

    Raises:
        ConfigError: when a word is no field with values, or a field is given twice.
    """
    usual, values = fields(run), {}
    for word in words:
        option, _, text = word.partition("=")
        option = ALIASES.get(option.lstrip("-"), option.lstrip("-"))
        name = option.replace("-", "_")
        if not option or not text:
            raise ConfigError(f"--grid {word}: give a field and its values: --grid optim.peak-lr=2e-5,3e-5")
        if name in values:
            raise ConfigError(f"--grid {option} is given twice; give all of its values at once")
        values[name] = tuple(_value(each.strip(), usual.get(name)) for each in text.split(","))
    return values


def _value(text: str, usual: object) -> object:
    """Returns a value of the type of `usual`; the text itself if it is none, which the configuration then refuses."""
    if isinstance(usual, bool):
        return {"true": True, "false": False}.get(text, text)
    if isinstance(usual, tuple):
        return tuple(text.split())
    for kind in (int, float):
        if isinstance(usual, kind):
            try:
                return kind(text)
            except ValueError:
                return text
    return text


def table(result: GridResult, run: Run) -> Result:
    """Returns a grid's figures as they are printed: a row for each setting, the best, and its test figures."""
    columns = list(dict.fromkeys((result["metric"], "loss", _OF_KIND.get(run.task.kind, "loss"))))
    best, failed = result["best"], any("diverged" in each for one in result["settings"] for each in one["runs"])
    rows = [_row(setting, columns, best, failed) for setting in result["settings"]]
    printed: dict[str, object] = {"grid": result["grid"], f"dev, {_means(result)}": rows}
    if best is None:
        printed["best"] = "none: no setting of which all runs ended with a finite figure"
    elif best["setting"]:
        printed["best"] = as_options(best["setting"])
    if "test" in result:
        printed["test" if best is None or not best["setting"] else "test, of the best alone"] = _cells(
            result["test"], columns
        )
    printed["all figures"] = f"{result['grid']}/{RESULTS}"
    return printed


def table_rows(result: GridResult) -> list[dict[str, Cell]]:
    """Returns a row for each setting: its values, and the mean and deviation of every metric over its seeds.

    The row of the best setting also has the metrics of the test examples.
    """
    best = result["best"]
    metrics = list(dict.fromkeys(name for setting in result["settings"] for name in setting["dev"]))
    rows: list[dict[str, Cell]] = []
    for setting in result["settings"]:
        row: dict[str, Cell] = {name.replace("_", "-"): shown(value) for name, value in setting["setting"].items()}
        row["seeds"] = len(setting["runs"])
        row["diverged"] = sum("diverged" in run for run in setting["runs"])
        row |= {name: _plus_minus(setting["dev"].get(name)) for name in metrics}
        if setting is best:
            on_test = result.get("test", {})
            row |= {"best": "yes", **{f"test {name}": _plus_minus(each) for name, each in on_test.items()}}
        rows.append(row)
    return rows


def _plus_minus(spread: Spread | None) -> Cell:
    return None if spread is None else plus_minus(spread["mean"], spread["deviation"])


def _means(result: GridResult) -> str:
    seeds = len(result["settings"][0]["runs"])
    return f"mean ± standard deviation of {seeds} seeds" if seeds > 1 else "one seed"


def _row(setting: SettingResult, columns: Sequence[str], best: SettingResult | None, failed: bool) -> dict[str, object]:
    row: dict[str, object] = {name.replace("_", "-"): shown(value) for name, value in setting["setting"].items()}
    if failed:
        row["diverged"] = sum("diverged" in run for run in setting["runs"])
    row |= _cells(setting["dev"], columns)
    return row | ({"best": "←" if setting is best else ""} if setting["setting"] else {})


def _cells(spreads: Spreads, columns: Sequence[str]) -> dict[str, object]:
    return {name: _cell(spreads.get(name)) for name in columns}


def _cell(spread: Mapping | Spread | None) -> str:
    if spread is None or spread["mean"] is None:
        return "–"
    deviation = spread["deviation"]
    return f"{spread['mean']:.4f}" + ("" if deviation is None else f" ± {deviation:.4f}")
