"""Looks up and rewrites arguments before they are parsed. Needs no jax."""

from contexture.cli.option_model import ALIASES
from contexture.overrides import without_replaced
from contexture.train.errors import ConfigError
from contexture.train.settings.run import Run


def find_option(argv: list[str], *names: str) -> str:
    """Returns the value of the first of these options: `--task.kind tag` or `--task.kind=tag` → "tag"; else ""."""
    for place, word in enumerate(argv):
        for name in names:
            if word == name and place + 1 < len(argv):
                return argv[place + 1]
            if word.startswith(name + "="):
                return word.partition("=")[2]
    return ""


def take_option(argv: list[str], name: str) -> tuple[str, list[str]]:
    """Returns (the value of an option, the arguments without it); ("", argv) if it is not given.

    Raises:
        ConfigError: when it has no value, or is given twice.
    """
    places = [place for place, word in enumerate(argv) if word == name or word.startswith(name + "=")]
    if not places:
        return "", argv
    value = find_option(argv, name)
    if len(places) > 1 or not value or value.startswith("--"):
        problem = "is given twice; give it once" if len(places) > 1 else f"wants a value: {name} FILE"
        raise ConfigError(f"{name} {problem}")
    return value, argv[: places[0]] + argv[places[0] + 1 + ("=" not in argv[places[0]]) :]


def expand_aliases(argv: list[str]) -> list[str]:
    """Replaces short forms (`--task X`, `--lr X`) by the full options (`--task.name X`, `--optim.peak-lr X`).

    Raises:
        ConfigError: when both are given.
    """
    short = {f"--{alias}": f"--{name}" for alias, name in ALIASES.items()}
    given = [word.partition("=")[0].replace("_", "-") for word in argv]
    for alias, name in short.items():
        if alias in given and name in given:
            raise ConfigError(f"{alias} and {name} are the same option; give one of them")
    return [
        short[name] + equals + value if (name := word.partition("=")[0]) in short else word
        for word in argv
        for _, equals, value in [word.partition("=")]
    ]


def apply_exclusive_options(base: Run, argv: list[str]) -> Run:
    """Returns the recipe without the settings that an argument replaces by an alternative."""
    names = ("steps", "epochs", "optim.warmup", "optim.warmup_fraction")
    return without_replaced(base, {name for name in names if find_option(argv, f"--{name.replace('_', '-')}")})
