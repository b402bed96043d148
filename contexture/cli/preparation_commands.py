"""The commands that clean text, learn a vocabulary and tokenise: argv → the printed result."""

import contextlib
import dataclasses
import logging
import math
import shlex
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from contexture.cli.output import Result, TwofoldResult
from contexture.cli.parse import parse
from contexture.cli.settings_file import read_settings, with_settings
from contexture.configs import recipe
from contexture.data.cleaning import clean_parts, join_cleaned
from contexture.data.config import DataConfig
from contexture.data.mirror import address_of, with_addresses
from contexture.data.mixed_paths import mixture_of
from contexture.data.pretraining.create_instances import InstanceOptions
from contexture.data.pretraining.instance_records import write_instances
from contexture.data.pretraining.join_parts import join
from contexture.data.pretraining.languages import mixed
from contexture.data.pretraining.part_folder import part_name
from contexture.data.pretraining.part_workers import Tally
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.text_parts import job_of, sampled
from contexture.data.pretraining.tokenize_corpus import Cluster, prepare_job, tokenize_part
from contexture.data.pretraining.vocabulary_parts import Counting, count_part, learn_from_parts, learn_in_workers
from contexture.data.storage import atomic_folder, check_free, left_partials
from contexture.data.text.sources import expand
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.unknown_tokens import LostMarks
from contexture.data.tokenizers.wordpiece import wordpiece
from contexture.requests import CleanRequest, PrepareRequest, TokenizerRequest
from contexture.requests.training import part_of_count
from contexture.train.errors import ConfigError, install_hint
from contexture.train.run.progress import duration
from contexture.train.run.signals import NOTHING_WRITTEN, PARTS_KEPT, Signals
from contexture.train.run.vocabulary import Weighted, check_tokenizer_kind, learn
from contexture.train.settings.run import Run

logger = logging.getLogger(__name__)
_BETWEEN = 5.0
"""Seconds between two lines of progress."""


def tokenizer_command(argv: list[str]) -> Result:
    """Learns a vocabulary from text."""
    request = parse(TokenizerRequest, argv, "tokenizer")
    check_free(request.to, request.overwrite)
    counting = Counting(
        kind=request.kind,
        input=request.input,
        text_column=request.text_column,
        sample_gb=request.sample_gb,
        lowercase=request.lowercase,
        word_splitter=request.word_splitter,
    )
    # Without the slash at the end of `--to vocabulary/`: beside the folder, and not in it.
    parts = Path(f"{Path(request.to)}.parts")
    with Signals(PARTS_KEPT if request.workers > 1 else NOTHING_WRITTEN) as signals:
        if request.part:
            part, count = request.part_of_count
            count_part(counting, parts, part, count, lambda *_: signals.check())
            return {"part": str(parts / part_name(part, count))}
        if request.join:
            tokenizer, marks = learn_from_parts(parts, request.kind, request.vocab_size, signals.check)
        elif request.workers > 1:
            to = Path(request.to)
            tokenizer, marks = learn_in_workers(counting, to, request.vocab_size, request.workers, signals.check)
        else:
            marks = LostMarks() if request.kind == "wordpiece" and request.lowercase else None
            tokenizer = learn(
                request.kind,
                _weighted(request) or [(counting.pieces, 1.0)],
                request.vocab_size,
                request.lowercase,
                signals,
                documents="files",
                split=request.word_splitter,
                marks=marks,
            )
    if marks and (line := marks.warning("the text", "keep them with --no-lowercase")):
        logger.warning(line)
    with atomic_folder(Path(request.to), request.overwrite) as part:
        tokenizer.save(part)
    return {"tokenizer": request.to, "vocab_size": tokenizer.size, "fingerprint": tokenizer.fingerprint}


def _weighted(request: TokenizerRequest) -> list[Weighted]:
    """Returns the texts of a mixture with their weights; none for text alone."""
    paths = mixed(request.languages, request.language_exponent) if request.languages else request.input
    column, most = request.text_column, request.sample_gb * 1e9 or math.inf
    return [(sampled(expand([each.path], "input", column), most), each.weight) for each in mixture_of(paths)]


def prepare_command(argv: list[str]) -> Result:
    """Tokenises text once into shards, or a part of it, or writes TFRecords of training instances."""
    request = parse(PrepareRequest, argv, "prepare")
    run = with_settings(recipe(request.recipe), read_settings(request.config), request.config)
    try:
        column = request.text_column or run.data.text_column
        held_out = {"dev": request.dev, "dev_fraction": request.dev_fraction}
        # Options of the command come before those of --config.
        units = run.data.units if request.units == "off" else request.units
        sequences = run.data.sequences if request.sequences == "pairs" else request.sequences
        marked = {"units": units, "gazetteer": request.gazetteer or run.data.gazetteer, "sequences": sequences}
        data = dataclasses.replace(run.data, path=request.input, text_column=column, **held_out, **marked)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    check_free(request.to)
    # Without the slash at the end of `--to shards/`: beside the folder, and not in it.
    parts = Path(f"{Path(request.to)}.parts")
    # Parts of a whole preparation lie on this machine's disk: of shards in a bucket nothing would be left.
    records = request.format == "google-tfrecord"
    shared = request.runner == "ray"
    kept = not records and not request.part and not request.join and (shared or address_of(request.to) is None)
    with Signals(PARTS_KEPT if kept else NOTHING_WRITTEN) as signals, _workers(request) as workers:
        if request.join:
            return _of_shards(request.to, join(parts, Path(request.to), stream=run.stream or "", check=signals.check))
        if records and run.stream != "sentence_pairs":
            raise ConfigError(f"--as google-tfrecord is for a BERT's pairs, not for {run.text.called}; leave it out")
        if records:
            _check_masks(data, request.whole_word_mask)
        for name in ("units", "gazetteer", "sequences"):
            if getattr(request, name) not in ("", "off", "pairs") and (records or run.stream != "sentence_pairs"):
                raise ConfigError(f"--{name} is for shards of a BERT; leave it out")
        tokenizer = _preparing_tokenizer(request, run, data, signals)
        if records:
            return _write_records(request, data, tokenizer, signals)
        if request.part:
            return _prepare_part(request, run, data, tokenizer, parts, signals)
        tally = Tally(0)
        line = _Progress(tally, request.per_worker)

        def progress(done: int, total: int) -> None:
            signals.check()
            line.show()

        job = job_of(data, tokenizer, run.stream, command=_command(request))
        shards = prepare_job(job, Path(request.to), progress, workers, tally)
    _name_left(Path(request.to))
    return _of_shards(request.to, shards)


def _name_left(to: Path) -> None:
    parts_left = [each for name in (to.name, f".{to.name}") for each in to.parent.glob(f"{name}.parts-*")]
    for left in [*left_partials(to), *parts_left]:
        logger.warning(f"{left} is what a preparation that was killed has left; delete it unless one is at work there")


@contextlib.contextmanager
def _workers(request: PrepareRequest) -> Iterator[int | Cluster]:
    """Gives what tokenises: so many processes, or a cluster, to which this process is connected meanwhile."""
    if request.runner == "local":
        yield request.workers or 1
        return
    if find_spec("ray") is None:
        raise ConfigError(f"runner=ray: ray is not installed; {install_hint('ray')}")
    from contexture.data.pretraining.ray_tasks import ray_cluster

    with ray_cluster(request.workers) as cluster:
        yield cluster


def _preparing_tokenizer(request: PrepareRequest, run: Run, data: DataConfig, signals: Signals) -> Tokenizer:
    """Returns the vocabulary that was given, or one that is learned on the text."""
    if request.tokenizer:
        tokenizer = load_tokenizer(request.tokenizer, data.lowercase, data.word_splitter)
    else:
        files, kind, size = sampled(expand(data.path, "input", data.text_column)), data.vocabulary, run.model.vocab
        tokenizer = learn(kind, [(files, 1.0)], size, data.lowercase, signals, data.documents, data.word_splitter)
    check_tokenizer_kind(run, tokenizer.kind)
    return tokenizer


def _check_masks(data: DataConfig, whole_words: bool) -> None:
    """Raises ConfigError for what settings say of masks that the original's script does not know."""
    # A recipe of whole words has them here by the script's own option.
    if whole_words and data.masking == "whole_words":
        data = dataclasses.replace(data, masking=DataConfig.masking)
    names = ("masking", "masking_copies", "mask_token_fraction", "random_token_fraction")
    # A constant share is the script's masked_lm_prob.
    others = [name for name in names if getattr(data, name) != getattr(DataConfig, name)]
    others += ["masked_fraction"] * (":" in data.masked_fraction)
    if others:
        option = f"data.{others[0].replace('_', '-')}"
        hint = "; for whole words give --whole-word-mask" if others[0] == "masking" else ""
        raise ConfigError(f"--as google-tfrecord masks as the original's script, without {option}; leave it out{hint}")


def _write_records(request: PrepareRequest, data: DataConfig, tokenizer: Tokenizer, signals: Signals) -> Result:
    options = InstanceOptions(
        length=data.length,
        predictions=data.slots,
        masked_fraction=data.masked_fraction_at(None),
        short_fraction=data.short_fraction,
        dupe_factor=request.dupe_factor,
        whole_word_mask=request.whole_word_mask,
    )
    sources = expand(data.path, "input", data.text_column)
    written = write_instances(
        sources,
        wordpiece(tokenizer),
        options,
        Path(request.to),
        seed=request.seed,
        files=request.files,
        check=signals.check,
    )
    return {"records": request.to, "vocab_size": tokenizer.size, **written._asdict()}


def _prepare_part(
    request: PrepareRequest, run: Run, data: DataConfig, tokenizer: Tokenizer, parts: Path, signals: Signals
) -> Result:
    part, count = request.part_of_count
    job = job_of(data, tokenizer, run.stream, command=_command(request))
    tally = Tally(sum(span.end - span.start for span in job.spans(part, count)))
    line = _Progress(tally)

    def report(read: int, documents: int, tokens: int) -> None:
        tally.add(read, documents, tokens)
        signals.check()
        line.show()

    tokenize_part(job, parts, part, count, report)
    return {"part": str(parts / part_name(part, count)), "documents": tally.documents, "tokens": tally.tokens}


def _command(request: PrepareRequest) -> str:
    """Returns the command that makes the shards in one process, for their manifest."""
    words = ["contexture", "prepare", request.recipe]
    # However they are made, and wherever they lie, the shards are the same.
    for name in ("input", "text_column", "tokenizer", "dev", "dev_fraction", "config"):
        value = getattr(request, name)
        if value:
            words += [f"--{name.replace('_', '-')}", *([value] if not isinstance(value, tuple) else value)]
    return with_addresses(shlex.join(map(str, words)))


def _of_shards(to: str, shards: Shards) -> Result:
    """Returns what a preparation prints."""
    tokenizer = shards.tokenizer
    splits = {
        name: {"documents": s.documents, "sentences": s.sentences, "tokens": s.tokens}
        for name, s in shards.splits.items()
    }
    summary = {"shards": to, "vocab_size": tokenizer.size, "fingerprint": shards.fingerprint}
    if tokenizer.unk is not None:
        summary["unknown"] = float(shards.unigrams()[tokenizer.unk] / max(shards.unigrams().sum(), 1))
    return {**summary, **splits}


def clean_command(argv: list[str]) -> Result | TwofoldResult:
    """Cleans text, or a part of it, or joins parts."""
    request = parse(CleanRequest, argv, "clean")
    # Without the slash at the end of `--to clean/`: beside the folder, and not in it.
    to = Path(request.to)
    parts = Path(f"{to}.parts")
    check_free(request.to)
    kept = not request.part and not request.join and address_of(request.to) is None
    with Signals(PARTS_KEPT if kept else NOTHING_WRITTEN) as signals:
        if request.join:
            return _of_cleaned(request.to, join_cleaned.join(parts, to, signals.check))
        tally = Tally(0)
        line = _Progress(tally, request.per_worker)

        def progress(done: int, total: int) -> None:
            signals.check()
            line.show()

        if not request.part:
            report = clean_parts.clean(request.config, to, progress, workers=request.workers, tally=tally)
            _name_left(to)
            return _of_cleaned(request.to, report)
        part, count = part_of_count(request.part)
        job = clean_parts.Cleaning(request.config)
        tally.total = sum(span.end - span.start for span in job.spans(part, count))

        def report_part(read: int, documents: int, tokens: int) -> None:
            tally.add(read, documents, tokens)
            progress(tally.read, tally.total)

        clean_parts.clean_part(job, parts, part, count, report_part)
    return {"part": str(parts / part_name(part, count)), "documents": tally.documents}


def _of_cleaned(to: str, report: join_cleaned.Report) -> TwofoldResult:
    """Returns what a cleaning prints: examples are in its report."""
    rules = [
        {"rule": rule, **{name: count[name] for name in ("documents", "paragraphs", "bytes")}}
        for rule, count in report["rules"].items()
    ]
    numbers = {name: report[name] for name in ("documents", "bytes", "kept_documents", "kept_bytes")}
    result = {"cleaned": to, **numbers}
    # A person reads of the rules that took something; all are in the JSON.
    took = [row for row in rules if row["bytes"] or row["documents"]]
    shown = {**result, "rules": took, "examples": str(Path(to) / join_cleaned.REPORT)}
    return TwofoldResult({**result, "rules": rules}, shown)


class _Progress:
    """A line every few seconds: how far the work is, how fast, how long it will take."""

    def __init__(self, tally: Tally, per_worker: bool = False) -> None:
        self._tally, self._per_worker = tally, per_worker
        self._last: tuple[float, int, int] | None = None

    def show(self) -> None:
        tally, now = self._tally, time.monotonic()
        if self._last is None:
            self._last = now, tally.read, tally.tokens
        then, read, tokens = self._last
        # Over the time since the last line: parts of an earlier start are passed over at once, and a cluster's arrive
        # whole.
        if now - then < _BETWEEN or tally.read == read:
            return
        ahead = (tally.total - tally.read) * (now - then) / max(tally.read - read, 1)
        left = f", {duration(ahead)} left" if tally.read > read else ""
        # Cleaning makes no tokens.
        speed = f"{(tally.read - read) / (now - then) / 1e6:,.1f} MB/s"
        if tally.tokens:
            speed = f"{tally.tokens:,} tokens, {(tally.tokens - tokens) / (now - then):,.0f} tokens/s"
        logger.info(
            f"{tally.read / 1e6:,.0f} of {tally.total / 1e6:,.0f} MB ({tally.read / max(tally.total, 1):.0%}): "
            f"{tally.documents:,} documents, {speed}{left}"
        )
        if self._per_worker and tally.workers:
            logger.info(", ".join(f"worker {number}: {at}" for number, at in sorted(tally.workers.items())))
        self._last = now, tally.read, tally.tokens
