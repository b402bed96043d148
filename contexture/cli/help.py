"""The help of the command line, in plain text that fits the terminal. Needs no jax."""

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from contexture.cli.commands import COMMANDS, GROUPS, Command
from contexture.cli.option_model import VARIES, Option, options_of_kind, options_of_runs
from contexture.train.settings.run import Run

_NARROWEST, _WIDEST = 60, 110
_SECTIONS = {
    "": "The run",
    "model": "Model",
    "data": "Data",
    "optim": "Optimizer",
    "mesh": "Devices",
    "save": "Checkpoints",
    "log": "Log",
    "evaluate": "Evaluation while training",
    "init": "Initialisation",
    "task": "Task",
    "head": "The task's head",
}
_EVERYWHERE = (
    ("--help, -h", "Show this help."),
    ("--help all", "Show all options."),
    ("--json", "Print one JSON object on stdout, and nothing else there."),
    ("--debug", "Add the traceback to an error."),
    ("--version", "Print the version."),
)


_HAS_NO_DEFAULT = ("task.name", "task.kind")
"""Options one of which has to be given, so that their values in the configuration are shown as no default."""


def wants_help(argv: Sequence[str]) -> bool:
    """Returns whether arguments ask for help."""
    return any(word in ("-h", "--help") for word in argv)


def main_page() -> str:
    """Returns what `contexture --help` prints: the commands in their groups."""
    parts = ["contexture COMMAND …", ""]
    for group in GROUPS:
        parts.append(group)
        parts += [f"  {name:<11}{one.summary}" for name, one in COMMANDS.items() if one.group == group]
        parts.append("")
    parts += _rows("Everywhere", [row for row in _EVERYWHERE if row[0] != "--help all"], _width())
    parts += ["COMMAND --help shows the options that are used first,", "COMMAND --help all shows all of them."]
    return "\n".join(parts)


def command_page(name: str, title: str, argv: Sequence[str], run: Run | None = None) -> str:
    """Returns what `contexture COMMAND … --help` prints.

    Args:
        name: the command.
        title: the command with its recipe, if one is given: pretrain bert.tiny.
        argv: the arguments; with `--help all` there are all options, in groups.
        run: the recipe, whose values are the defaults; None: what all families have.
    """
    command, width = COMMANDS[name], _width()
    options, wants_all = options_of(command, run), "all" in argv
    named = [option for option in options if not option.positional]
    first = [option for option in named if option.name in command.first] or named
    # In the order of the command's entry, which puts the most used first.
    first.sort(key=lambda option: command.first.index(option.name) if command.first else 0)
    usage = command.usage
    if command.arguments and title != name:  # the recipe is given
        usage = usage.partition(" ")[2]
    parts = [*textwrap.wrap(f"contexture {title} {usage}".rstrip(), width, subsequent_indent="    "), ""]
    parts += [f"{command.summary}.", ""]
    rows = [*command.arguments] if title == name else []
    parts += _rows("Arguments", [*rows, *positionals(command, options)], width)
    if not wants_all or len(first) == len(named):
        few = f"Options that are used first ({len(named) - len(first)} more: --help all)"
        rows = _option_rows(first, command, full=len(first) == len(named))
        parts += _rows(few if len(first) < len(named) else "Options", rows, width)
    else:
        for heading, rows in option_sections(command, named):
            parts += _rows(heading, rows, width)
    more = len(first) < len(named)
    parts += _rows("Everywhere", [row for row in _EVERYWHERE if more or row[0] != "--help all"], width)
    if command.arguments and run is None:
        note = (
            "With a recipe or a run before --help, these are its own options and defaults: "
            f"contexture {name} {'runs/mine' if name == 'finetune' else 'bert.tiny'} --help"
        )
        parts += [*textwrap.wrap(note, width), ""]
    parts.append("Example" if len(command.examples) == 1 else "Examples")
    given = title.partition(" ")[2]
    for example in command.examples:
        parts += shell_lines(example.format(recipe=given or "bert.tiny", run=given or "runs/mine"), width)
    return "\n".join(parts)


def positionals(command: Command, options: Sequence[Option]) -> list[tuple[str, str]]:
    """Returns the words without a name of a command, and their texts."""
    return [(_metavar_of(option), _text(option, command, full=True)) for option in options if option.positional]


def option_sections(command: Command, options: Sequence[Option]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yields each heading of a command's options with its (usage, help) rows."""
    for section, heading in _SECTIONS.items():
        of_section = [option for option in options if _section(option) == section and not option.positional]
        yield heading if section or command.of_run else "Options", _option_rows(of_section, command, full=True)


def options_of(command: Command, run: Run | None = None) -> list[Option]:
    """Returns the options of a command, for a run or for runs of any family."""
    if not command.of_run:
        return options_of_kind(command.kind())
    kind = command.kind()
    return options_of_runs([_as(kind, each) for each in ([run] if run else _any_runs(command))])


def _as(kind: type, run: Run) -> Run:
    """Returns the run with the further fields of the command's type."""
    if isinstance(run, kind):
        return run
    return kind(**{field.name: getattr(run, field.name) for field in dataclasses.fields(Run)})


def _any_runs(command: Command) -> list[Run]:
    """Returns runs of all families, as the command begins with them."""
    from contexture.configs import recipes
    from contexture.configs.finetuning import finetune_run

    runs = [recipe() for recipe in recipes().values()]
    if command.arguments[0][0] != "RUN":
        return runs
    # Reversed: of each family the first recipe stays.
    one_of_each = {run.family: run for run in reversed(runs)}
    return [finetune_run(run, "", kind) for kind in ("classify", "span") for run in one_of_each.values()]


def _width() -> int:
    return min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)


def _section(option: Option) -> str:
    return option.name.rpartition(".")[0]


def _option_rows(options: Sequence[Option], command: Command, *, full: bool) -> list[tuple[str, str]]:
    return [(_left(option), _text(option, command, full=full)) for option in options]


def _left(option: Option) -> str:
    """Returns an option as one writes it: `--lr, --optim.peak-lr RATE`, `--data.[no-]packed`."""
    section, _, last = option.name.rpartition(".")
    name = f"{section}{'.' * bool(section)}[no-]{last}" if option.flag else option.name
    return " ".join([", ".join(sorted((*option.aliases, f"--{name}"), key=len)), option.metavar]).rstrip()


def _metavar_of(word: Option) -> str:
    return word.metavar if word.metavar.isupper() or "…" in word.metavar else word.name.upper()


def _text(option: Option, command: Command, *, full: bool) -> str:
    text = option.text if full else option.sentence
    listed = [choice for choice in option.choices if choice]
    is_said = all(f"{choice}:" in text for choice in listed)
    if listed and not is_said and (option.positional or "|".join(listed) != option.metavar.removesuffix(" …")):
        text += f" One of {', '.join(listed)}."
    if option.name in command.required or (option.default is dataclasses.MISSING and not option.positional):
        return f"{text} (required)"
    if option.default is VARIES:
        return f"{text} [depends on {command.arguments[0][0].partition('|')[0]}]"
    shown = "" if option.name in _HAS_NO_DEFAULT else _shown(option.default)
    return f"{text} [{shown}]" if shown else text


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return " ".join(" ".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in default)
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) if isinstance(default, int | str | Path) else ""


def _rows(heading: str, rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Returns a table of two columns under a heading, its text wrapped; nothing if there are no rows."""
    if not rows:
        return []
    indent = min(max(len(left) for left, _ in rows) + 4, 34 if width >= 80 else 22)
    lines = [heading]
    for left, text in rows:
        wrapped = textwrap.wrap(text, width - indent, break_on_hyphens=False) or [""]
        if len(left) + 4 > indent:
            lines.append(f"  {left}")
        else:
            lines.append(f"  {left:<{indent - 2}}{wrapped.pop(0)}".rstrip())
        lines += [" " * indent + line for line in wrapped]
    return [*lines, ""]


def shell_lines(command: str, width: int) -> list[str]:
    """Returns a command on as many lines as it needs, as shells read it: all but the last end with a backslash."""
    lines: list[str] = []
    for part in re.split(r" (?=--)", command):  # an option stays on one line with its value
        if lines and len(lines[-1]) + len(part) + 1 <= width - 2:
            lines[-1] += f" {part}"
        else:
            lines.append(f"{'      ' if lines else '  '}{part}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]
