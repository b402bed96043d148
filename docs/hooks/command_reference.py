"""The page of all commands and options, made of the same texts as `--help all`. Needs no jax."""

import re
import textwrap
from collections.abc import Iterator

from contexture import configs
from contexture.cli.commands import COMMANDS, GROUPS, Command
from contexture.cli.help import option_sections, options_of, positionals, shell_lines
from contexture.configs.finetuning import finetune_run
from contexture.train.settings.run import Run

FAMILIES = {"BERT": "bert.tiny", "GPT": "gpt.tiny", "ELMo": "elmo.tiny"}
"""A recipe of each family, whose values stand as its defaults."""
EXIT_CODES = {
    0: "done",
    1: "failed: disk, numbers, checkpoint, another process",
    2: "your options or files are wrong",
    75: "saved on SIGTERM; start the same command again",
    130: "saved on Ctrl-C",
}
_COLUMNS = 86
"""Letters of code that a page has room for."""


def page() -> str:
    """Returns the page in Markdown."""
    parts = [
        "# Commands",
        "All commands and options, made from the texts of `contexture COMMAND --help all`. A default stands in square "
        "brackets. Results go to stdout, with `--json` as one object; progress, tables and warnings go to stderr. "
        "`--debug` adds the traceback to an error.",
        "| exit code | meaning |\n|---|---|\n" + "\n".join(f"| {code} | {text} |" for code, text in EXIT_CODES.items()),
    ]
    for group in GROUPS:
        parts.append(f"## {group}")
        for name, command in COMMANDS.items():
            if command.group == group:
                parts += [f"### {name}", f"{command.summary}.", *_command(name, command)]
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Command) -> Iterator[str]:
    usage = f"contexture {name} {command.usage}".rstrip()
    yield _code(textwrap.wrap(usage, _COLUMNS, subsequent_indent="    ", break_on_hyphens=False))
    examples = [line[2:] for one in command.examples for line in shell_lines(_filled(one), _COLUMNS + 2)]
    yield "Examples:" if len(command.examples) > 1 else "Example:"
    yield _code(examples)
    options = options_of(command)
    words = [*command.arguments, *positionals(command, options)]
    if words:
        yield _definitions(words)
    if name in ("show", "plan"):
        yield "It takes the options of [pretrain](#pretrain)" + (", and:" if name == "plan" else ".")
        of_runs = {option.name for option in options_of(COMMANDS["pretrain"])}
        options = [option for option in options if option.name not in of_runs and name == "plan"]
    yield from _sections(name, command, options, "")
    if name in ("pretrain", "finetune"):
        common = {option.name for option in options}
        for family, recipe in FAMILIES.items():
            run = configs.recipe(recipe)
            its = options_of(command, _finetuned(run) if name == "finetune" else run)
            yield f"#### {name}: {family} alone"
            yield f"Defaults are those of `{recipe}`."
            yield from _sections(name, command, [one for one in its if one.name not in common], f"{family}, ")


def _sections(name: str, command: Command, options: list, prefix: str) -> Iterator[str]:
    for heading, rows in option_sections(command, options):
        if rows:
            yield f"**{prefix}{heading[0].lower() if prefix else heading[0]}{heading[1:]}**"
            yield _definitions(rows)


def _finetuned(run: Run) -> Run:
    return finetune_run(run, "", "classify")


def _filled(example: str) -> str:
    return example.format(recipe="bert.tiny", run="runs/mine")


def _code(lines: list[str]) -> str:
    return "```bash\n" + "\n".join(lines) + "\n```"


def _definitions(rows: list[tuple[str, str]]) -> str:
    return "\n\n".join(f"`{left}`\n\n:   {_escaped(text)}" for left, text in rows)


def _escaped(text: str) -> str:
    """Returns a text of help as Markdown shows it: only its code in backticks means something."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if n % 2 else re.sub(r"([\\*_\[\]<>#|])", r"\\\1", part) for n, part in enumerate(parts))
