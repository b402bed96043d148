"""`contexture zeroshot`: argv → figures."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from contexture.api import open
from contexture.cli.lines import check_lines, lines_of
from contexture.cli.output import Result
from contexture.cli.parse import parse
from contexture.data.errors import DataError
from contexture.data.plain_files import inner_suffix
from contexture.requests import ZeroshotRequest, several
from contexture.requests.arguments import checkpoint_of
from contexture.table_files import check_table, write_table
from contexture.train.errors import ConfigError
from contexture.train.run.signals import STOPPED, Signals
from contexture.train.settings.run_file import read


def zeroshot_command(argv: list[str]) -> Result:
    """Measures a pretrained run on a task without training it."""
    request = parse(ZeroshotRequest, argv, "zeroshot")
    if request.table:
        check_table(Path(request.table))
    result = {"run": str(request.run), "task": request.task, **_measure(request)}
    if request.table:
        write_table(Path(request.table), _table_rows(result))
        result["table"] = request.table
    return result


def _table_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the figures as a row; those of groups before them, a row each."""
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
            # That of the accuracy stands in the column of the groups' own.
            whole["standard_error" if name == "accuracy" and rows else f"{name}_standard_error"] = errors[name]
    return [*rows, whole]


def _measure(request: ZeroshotRequest) -> dict[str, Any]:
    run = read(Path(request.run)).run
    if request.shots and not run.text.is_causal:
        raise ConfigError(f"--shots is for a GPT, which reads on from examples; {request.run} is a run of {run.family}")
    if request.task in ("qa", "summarize", "translate") and not run.text.is_causal:
        raise ConfigError(
            f"--task {request.task} is for a GPT, which writes its answers; {request.run} is a run of {run.family}"
        )
    if request.to and not Path(request.to).parent.is_dir():
        raise DataError(f"{request.to}: its folder is not there; make it, or give another name")
    if request.task in ("choice", "cbt"):
        return _choose(request)
    if request.task == "blimp":
        return _minimal_pairs(request)
    if request.task in ("qa", "summarize", "translate"):
        return _write_answers(request)
    from contexture.data.tasks.read.read_examples import check_sources

    files = several(request.input)
    for file in files:
        if request.task == "lambada" and inner_suffix(file) == ".jsonl":
            check_sources([file], "--input")
        else:
            check_lines(Path(file), "a passage" if request.task == "lambada" else "text")
    with Signals(STOPPED) as signals:
        model = open(request.run, checkpoint_of(request.step))
        if request.task == "lambada":
            from contexture.analysis.zeroshot.files import passages
            from contexture.analysis.zeroshot.lambada import lambada

            texts = [text for file in files for text in passages(file)]
            return lambada(model, texts, batch=request.batch, cancel=signals)
        from contexture.analysis.zeroshot.word_perplexity import word_perplexity

        def corpus() -> Iterator[str]:
            for file in files:
                yield from lines_of(Path(file), "text")

        options: dict[str, Any] = {"length": request.length, "stride": request.stride, "batch": request.batch}
        return word_perplexity(model, corpus(), request.task, cancel=signals, **options)


def _choose(request: ZeroshotRequest) -> dict[str, Any]:
    from contexture.analysis.zeroshot.alternatives import choose
    from contexture.analysis.zeroshot.files import Questions, book_questions, questions, with_shots
    from contexture.data.config import TaskConfig

    def questions_of(files: tuple[str, ...], group: str = "") -> Questions:
        if request.task == "choice":
            columns = {name: getattr(request, name) for name in ("text", "choices", "label", "labels", "header")}
            return questions(files, TaskConfig(kind="choice", **columns), group)
        for file in files:
            check_lines(Path(file), "a sentence")
        read = [book_questions(file) for file in files]
        return Questions(
            *([x for each in read for x in getattr(each, name)] for name in ("texts", "choices", "labels", "groups"))
        )

    asked = questions_of(several(request.input), request.group)
    texts = asked.texts
    if request.shots:
        texts = with_shots(asked, questions_of(several(request.examples)), request.shots, request.seed)
    with Signals(STOPPED) as signals:
        model = open(request.run, checkpoint_of(request.step))
        result = choose(model, texts, asked.choices, asked.labels, asked.groups, batch=request.batch, cancel=signals)
    chosen, log_probs = result.pop("chosen"), result.pop("log_probs")
    if request.to:
        rows = (
            {"text": text, "choices": choices, "label": label, "chosen": int(own), "log_probs": scores.tolist()}
            for text, choices, label, own, scores in zip(
                texts, asked.choices, asked.labels, chosen, log_probs, strict=True
            )
        )
        _write_rows(request.to, rows)
        result["to"] = request.to
    return {**result, **({"shots": request.shots} if request.shots else {})}


def _minimal_pairs(request: ZeroshotRequest) -> dict[str, Any]:
    from contexture.analysis.zeroshot.minimal_pairs import minimal_pairs, pair_files, read_pairs

    pairs = read_pairs(pair_files(several(request.input)))
    with Signals(STOPPED) as signals:
        model = open(request.run, checkpoint_of(request.step))
        result = minimal_pairs(model, pairs, batch=request.batch, cancel=signals)
    answers = result.pop("answers")
    if request.to:
        _write_rows(request.to, answers)
        result["to"] = request.to
    return result


def _write_answers(request: ZeroshotRequest) -> dict[str, Any]:
    from contexture.analysis.zeroshot.conversations import read_questions
    from contexture.analysis.zeroshot.referenced_texts import NO_SHOTS, ReferencedTexts, Shots, read_referenced_texts
    from contexture.analysis.zeroshot.written_answers import answer_questions, summarize, translate

    def texts_of(option: Literal["input", "examples"], task: Literal["summarize", "translate"]) -> ReferencedTexts:
        return read_referenced_texts(
            several(getattr(request, option)),
            task,
            text=request.text,
            references=several(request.references),
            header=request.header,
            option=f"--{option}",
        )

    options: dict[str, Any] = {"tokens": request.tokens, "batch": request.batch}
    with Signals(STOPPED) as signals:
        options["cancel"] = signals
        if request.task == "qa":
            questions = read_questions(several(request.input))
            result = answer_questions(open(request.run, checkpoint_of(request.step)), questions, **options)
        elif request.task == "summarize":
            articles = texts_of("input", "summarize")
            result = summarize(open(request.run, checkpoint_of(request.step)), articles, seed=request.seed, **options)
        else:
            asked = texts_of("input", "translate")
            shown = NO_SHOTS
            if request.shots:
                shown = Shots(texts_of("examples", "translate"), request.shots, request.seed)
            options["tokenize"] = request.bleu_tokenize
            result = translate(open(request.run, checkpoint_of(request.step)), asked, shown, **options)
            result |= {"shots": request.shots} if request.shots else {}
    answers = result.pop("answers")
    if request.to:
        _write_rows(request.to, answers)
        result["to"] = request.to
    return result


def _write_rows(to: str, rows: Iterable[Mapping[str, Any]]) -> None:
    from contexture.data.storage import atomic_file

    with atomic_file(Path(to)) as part:
        part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
