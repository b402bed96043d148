"""The command line: `contexture COMMAND …`, also `python -m contexture COMMAND …`.

Results go to stdout (with --json one JSON object and nothing else); progress, tables and warnings go to stderr.
Exit codes: 0 done, 1 failed (disk, numbers, checkpoint), 2 wrong arguments or files, 75 saved on SIGTERM (start it
again), 130 saved on Ctrl-C.
"""

import io
import json
import os
import sys
import traceback
from collections.abc import Callable

from contexture.cli import query_commands, training_commands
from contexture.cli.output import Result, StreamingResult, print_result, write_out
from contexture.data.errors import did_you_mean
from contexture.data.visible import visible, visible_json
from contexture.train.errors import ConfigError
from contexture.train.run.console import console, logged_to
from contexture.train.run.exit_codes import exit_of
from contexture.train.run.signals import Interrupted

COMMANDS: dict[str, Callable[[list[str]], Result | StreamingResult | None]] = {
    "recipes": training_commands.recipes_command,
    "tokenizer": training_commands.tokenizer_command,
    "prepare": training_commands.prepare_command,
    "pretrain": training_commands.pretrain_command,
    "finetune": training_commands.finetune_command,
    "status": query_commands.status_command,
    "compare": query_commands.compare_command,
    "evaluate": query_commands.evaluate_command,
    "predict": query_commands.predict_command,
    "fill": query_commands.fill_command,
    "generate": query_commands.generate_command,
    "score": query_commands.score_command,
    "embed": query_commands.embed_command,
    "layers": query_commands.layers_command,
    "import": query_commands.import_command,
    "export": query_commands.export_command,
    "plan": training_commands.plan_command,
    "show": training_commands.show_command,
}


def _help() -> str:
    lines = [f"  {name:<10} {function.__doc__}" for name, function in COMMANDS.items()]
    return "contexture COMMAND …\n\n" + "\n".join(lines) + "\n\ncontexture COMMAND --help tells more."


def run_command(argv: list[str]) -> Result | StreamingResult | None:
    """Runs one command; returns None where it printed help."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return None
    command = COMMANDS.get(argv[0])
    if command is None:
        raise ConfigError(
            f"there is no command {argv[0]!r}{did_you_mean(argv[0], COMMANDS)}; contexture --help lists them"
        )
    return command(argv[1:])


def main(argv: list[str] | None = None) -> int:
    """Runs one command, prints an error in one line, returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    as_json, debug = "--json" in argv, "--debug" in argv
    argv = [word for word in argv if word not in ("--json", "--debug")]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with logged_to(console()):
            result = run_command(argv)
            if isinstance(result, StreamingResult):
                streamed = result.work((lambda text: None) if as_json else write_out)
                result = streamed if as_json else write_out("\n")
        if result is not None:
            print(visible_json(json.dumps(result, ensure_ascii=False))) if as_json else print_result(result)
        return 0
    except SystemExit as stop:
        return int(stop.code or 0)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, Interrupted, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exception(error)
        code, line = exit_of(error)
        print(" ".join(visible(line).split()), file=sys.stderr)
        return code
