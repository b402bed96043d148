"""The command line: `contexture COMMAND …`, also `python -m contexture COMMAND …`.

Results go to stdout (with --json one JSON object and nothing else); progress, tables and warnings go to stderr.
Exit codes: 0 done, 1 failed (disk, numbers, checkpoint), 2 wrong arguments or files, 75 saved on SIGTERM (start it
again), 130 saved on Ctrl-C.
"""

import io
import os
import sys
import traceback

import contexture
from contexture.cli.commands import COMMANDS
from contexture.cli.output import (
    Result,
    StreamingResult,
    TwofoldResult,
    json_line,
    print_result,
    terminal_width,
    write_out,
)
from contexture.data.bucket import parse_address
from contexture.data.errors import did_you_mean
from contexture.data.mirror import finish, local
from contexture.data.mixed_paths import split_weight
from contexture.data.visible import visible
from contexture.train.errors import ConfigError
from contexture.train.run.console import console, logged_to
from contexture.train.run.exit_codes import exit_of
from contexture.train.run.signals import Interrupted


def run_command(argv: list[str]) -> Result | StreamingResult | TwofoldResult | None:
    """Runs one command; returns None where it printed help."""
    if argv[:1] == ["help"] and argv[1:]:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        from contexture.cli.help import main_page

        print(main_page())
        return None
    if "--version" in argv:
        print(f"contexture {contexture.__version__}")
        return None
    # From here on there are paths alone: what a bucket holds at an address of the command line is fetched.
    argv = [argv[0], *_with_paths(argv[1:])]
    command = COMMANDS.get(argv[0])
    if command is None:
        raise ConfigError(
            f"there is no command {argv[0]!r}{did_you_mean(argv[0], COMMANDS)}; contexture --help lists them"
        )
    return command.function()(argv[1:])


_TEXTS = ("--text", "--prompt", "--stop", "--word", "--words")
"""Options whose values are texts, whatever they look like."""


def _with_paths(words: list[str]) -> list[str]:
    """Returns the words of a command line, `WORD` or `--option=WORD`, with paths in place of addresses."""
    paths: list[str] = []
    current = ""
    for word in words:
        option, joined, value = word.partition("=") if word.startswith("--") else ("", "", word)
        current = option or current
        # A source of a mixture has its weight in front.
        lead, path = split_weight(value)
        is_place = parse_address(path) and current not in _TEXTS
        paths.append(f"{option}{joined}{lead}{local(path)}" if is_place else word)
    return paths


def main(argv: list[str] | None = None) -> int:
    """Runs one command, prints an error in one line, returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:2] == ["completion", "--words"]:  # before anything is taken out of the words
        from contexture.cli.completion import print_words

        print_words(argv[2:])
        return 0
    as_json, debug = "--json" in argv, "--debug" in argv
    argv = [word for word in argv if word not in ("--json", "--debug")]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a letter gets `?`, and the command goes on.
            stream.reconfigure(errors="replace")
    code = 0
    try:
        with logged_to(console()):
            result = run_command(argv)
            if isinstance(result, StreamingResult):
                streamed = result.work((lambda text: None) if as_json else write_out)
                if isinstance(streamed, TwofoldResult):
                    code, streamed = streamed.code, streamed.json
                result = streamed if as_json else write_out("\n")
            elif isinstance(result, TwofoldResult):
                code, result = result.code, result.json if as_json else result.shown
        finish()
        if result is not None:
            if as_json:
                print(json_line(result))
            else:
                print_result(result, width=terminal_width())
        return code
    except SystemExit as stop:
        return int(stop.code or 0)
    except BrokenPipeError:
        # The reader is gone (`| head`): Python's own flush at exit must not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, Interrupted, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exception(error)
        code, line = exit_of(error)
        print(" ".join(visible(line).split()), file=sys.stderr)
        return code
