"""`contexture zeroshot`: argv → figures."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from contexture.analysis.zeroshot.tasks import ZERO_SHOT
from contexture.api import open
from contexture.cli.output import Result
from contexture.cli.parse import parse
from contexture.data.errors import DataError
from contexture.requests import ZeroshotRequest
from contexture.requests.arguments import checkpoint_of
from contexture.table_files import check_table, write_table
from contexture.train.errors import ConfigError
from contexture.train.run.signals import STOPPED, Signals
from contexture.train.settings.run_file import read


def zeroshot_command(argv: list[str]) -> Result:
    """Evaluates a pretrained run on a task zero-shot."""
    request = parse(ZeroshotRequest, argv, "zeroshot")
    if request.table:
        check_table(Path(request.table))
    result = {"run": str(request.run), "task": request.task, **_measure(request)}
    if request.table:
        write_table(Path(request.table), _table_rows(result))
        result["table"] = request.table
    return result


def _table_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a row for each group, if there are any, and a last row with the figures of all examples."""
    errors = result.get("standard_errors", {})
    if "paradigms" in result:
        mean = {"UID": "mean", "examples": result["examples"], "accuracy": result["accuracy"]}
        return [*result["paradigms"], {**mean, "standard_error": errors["accuracy"]}]
    rows = [{"group": name, **figures} for name, figures in result.get("groups", {}).items()]
    whole: dict[str, Any] = {"group": "all"} if rows else {}
    for name, value in result.items():
        if isinstance(value, str | int | float) and name not in ("convention", "signature", "to"):
            whole[name] = value
        if name in errors:
            # With groups, the accuracy's error shares their column standard_error.
            whole["standard_error" if name == "accuracy" and rows else f"{name}_standard_error"] = errors[name]
    return [*rows, whole]


def _measure(request: ZeroshotRequest) -> dict[str, Any]:
    task = ZERO_SHOT[request.task]
    run = read(Path(request.run)).run
    if request.shots and not run.text.is_causal:
        raise ConfigError(f"--shots is for a GPT, which reads on from examples; {request.run} is a run of {run.family}")
    if task.writes and not run.model.generates:
        raise ConfigError(
            f"--task {request.task} is for a GPT, which writes its answers; {request.run} is a run of {run.family}"
        )
    if request.to and not Path(request.to).parent.is_dir():
        raise DataError(f"{request.to}: its folder is not there; make it, or give another name")
    with Signals(STOPPED) as signals:
        # Files before the run: a mistake in one shows at once, and opening a large run takes a while.
        questions = task.read(request)
        result = task.score(open(request.run, checkpoint_of(request.step)), questions, request, signals)
    answers = result.pop("answers", None)
    if request.to and answers is not None:
        _write_rows(request.to, answers)
        result["to"] = request.to
    return result


def _write_rows(to: str, rows: Iterable[Mapping[str, Any]]) -> None:
    from contexture.data.storage import atomic_file

    with atomic_file(Path(to)) as part:
        part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
