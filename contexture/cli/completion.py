"""`contexture completion bash|zsh|fish`: a script that asks this program how a word may go on. Needs no jax."""

import json
from pathlib import Path

from contexture.cli.argv import find_option
from contexture.cli.commands import COMMANDS, Command
from contexture.cli.help import options_of
from contexture.cli.option_model import Option
from contexture.train.families import FAMILIES
from contexture.train.settings.run import Run

FILES, WORDS = "files", "words"
_ANYWHERE = ("--help", "--json", "--debug", "--version")
_PATHS = ("FILE", "DIR", "RUN")
SCRIPTS = {
    "bash": """\
_contexture() {
    local IFS=$'\\n' current="${COMP_WORDS[COMP_CWORD]}" completions
    [ "$current" = "=" ] && current=""
    completions=($("${COMP_WORDS[0]}" completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    COMPREPLY=($(compgen -W "${completions[*]:1}" -- "$current"))
    if [ "${completions[0]}" = files ]; then
        compopt -o filenames 2>/dev/null
        COMPREPLY+=($(compgen -f -- "$current"))
    fi
}
complete -F _contexture contexture
""",
    "zsh": """\
_contexture() {
    local -a completions
    completions=("${(@f)$("${words[1]}" completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -- "${(@)completions[2,-1]}"
    [ "${completions[1]}" = files ] && _files
}
compdef _contexture contexture
""",
    "fish": """\
function __contexture
    set -l completions (contexture completion --words (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    printf '%s\\n' $completions[2..]
    test "$completions[1]" = files; and __fish_complete_path (commandline -ct)
end
complete -c contexture -f -a '(__contexture)'
""",
}


def completion_command(argv: list[str]) -> None:
    """Prints the script of a shell."""
    from contexture.cli.parse import parse
    from contexture.requests import CompletionRequest

    print(SCRIPTS[parse(CompletionRequest, argv, "completion").shell], end="")


def print_words(words: list[str]) -> None:
    """Prints how the last word of a command line may go on, for the scripts: `files` or `words`, then a word a line."""
    kind, completions = complete([word for word in words if word != "="])  # bash takes --option=value apart
    print("\n".join([kind, *completions]))


def complete(words: list[str]) -> tuple[str, list[str]]:
    """Returns ("files" if file names may complete the last word as well, else "words"; the words that complete it)."""
    *before, current = words or [""]
    if not before:
        return WORDS, [*COMMANDS, *_ANYWHERE] if current.startswith("-") else [*COMMANDS, "help"]
    command = COMMANDS.get(before[0])
    if command is None:
        return WORDS, list(COMMANDS) if before == ["help"] else []
    options = options_of(command, _run_of(command, before))
    # Behind an option its value, or its further values; behind these the arguments.
    # The last option before the word that is completed.
    behind = next((place for place in range(len(before) - 1, 0, -1) if before[place].startswith("--")), 0)
    option = next((one for one in options if before[behind] in one.flags), None) if behind else None
    values = len(before) - 1 - behind
    if current.startswith("-"):
        return WORDS, [flag for one in options if not one.positional for flag in one.flags] + [*_ANYWHERE]
    if before[behind] in ("--help", "-h"):
        return WORDS, ["all"]
    if option and not option.flag and (option.several or not values):
        return _values(option)
    return _arguments(command, options, before[1:])


def _values(option: Option) -> tuple[str, list[str]]:
    from contexture.configs import task_recipes

    if option.name == "task.name":
        return WORDS, list(task_recipes())
    if option.choices:
        return WORDS, [choice for choice in option.choices if choice]
    return (FILES if option.metavar.partition(" ")[0] in _PATHS else WORDS), []


def _arguments(command: Command, options: list[Option], given: list[str]) -> tuple[str, list[str]]:
    """Returns the possible next arguments without a name; these come before options."""
    if any(word.startswith("-") for word in given):
        return WORDS, []
    metavars = [metavar for metavar, _ in command.arguments]
    positional = [option for option in options if option.positional]
    names = metavars or [option.metavar for option in positional]
    place = len(given) if len(given) < len(names) else len(names) - 1 if names and "…" in names[-1] else None
    if place is None:
        return WORDS, []
    if "RECIPE" in names[place]:
        return FILES, _recipes()
    return _values(positional[place]) if positional else (FILES, [])


def _recipes() -> list[str]:
    from contexture.configs import recipes

    return list(recipes())


def _run_of(command: Command, before: list[str]) -> Run | None:
    """Returns a run whose options the command takes: its recipe, or one of the family of the folder to begin from."""
    from contexture.configs import recipes

    if not command.of_run or not before[1:2] or before[1].startswith("-"):
        return None
    known, name = recipes(), before[1]
    if command.arguments[0][0] != "RUN":
        return known[name]() if name in known else None  # a user's own file is not run for this
    from contexture.configs import task_recipes
    from contexture.configs.finetuning import finetune_run

    family, task = _family(Path(name)), find_option(before, "--task.name", "--task", "--task.kind")
    if family not in FAMILIES:
        return None
    return finetune_run(known[f"{family}.tiny"](), name, task if task in task_recipes() else "classify")


def _family(folder: Path) -> object:
    """Returns the family of a run; read without checks, whose imports take longer than a key press may."""
    try:
        return json.loads((folder / "run.json").read_text("utf-8"))["config"]["model"]["family"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
