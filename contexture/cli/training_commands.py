"""The commands that take a recipe, or train: argv → what is printed."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from contexture.cli.output import Result, StreamingResult, results_alone
from contexture.cli.parse import apply_exclusive_options, expand_aliases, find_option, parse
from contexture.requests import NoOptions, PlanRequest, PrepareRequest, ShowRequest, TokenizerRequest
from contexture.train.config import Run
from contexture.train.errors import ConfigError
from contexture.train.run.signals import Signals, interrupted_at_once
from contexture.train.run_file import read, to_json

logger = logging.getLogger(__name__)
R = TypeVar("R", bound=Run)


def _recipe(argv: list[str], command: str, kind: type[R] = Run) -> tuple[R, Run, str]:
    """Returns (the run with its overrides, the recipe as it is, the recipe's name). kind: Run, or with more fields."""
    from contexture.configs import recipe
    from contexture.configs.finetuning import load_source_run, pretrain_further

    name = argv[0] if argv and not argv[0].startswith("-") else ""
    if not name and any(word in ("-h", "--help") for word in argv):
        return parse(kind, argv, f"{command} RECIPE"), Run(), ""
    if not name:
        raise ConfigError(f"{command} wants a recipe first: contexture {command} bert.tiny …")
    base = recipe(name)
    argv = expand_aliases(argv[1:])
    if folder := find_option(argv, "--init.run"):
        base = pretrain_further(load_source_run(Path(folder), Path(find_option(argv, "--dir") or "."))[0], base)
    base = apply_exclusive_options(base, argv)
    if options := [word for word in argv if word.startswith("--task.")]:
        raise ConfigError(f"{command} {name} reads text and no task; contexture finetune RUN {options[0]} …")
    default = kind(**{field.name: getattr(base, field.name) for field in dataclasses.fields(Run)})
    return parse(kind, argv, f"{command} {name}", default), base, name


def recipes_command(argv: list[str]) -> Result:
    """what can be trained, one line each"""
    from contexture.configs import recipes, task_recipes

    parse(NoOptions, argv, "recipes")
    both = {"recipes": recipes(), "tasks": task_recipes()}
    return {kind: {name: str(f.__doc__).strip().splitlines()[0] for name, f in of.items()} for kind, of in both.items()}


def show_command(argv: list[str]) -> Result:
    """the resolved config and parameter table; nothing runs"""
    request = parse(ShowRequest, argv[:1], "show") if not argv or argv[0][:1] == "-" else ShowRequest(what=argv[0])
    labels: tuple[str, ...] = ()
    if (Path(request.what) / "run.json").exists():
        record, name = read(Path(request.what)), request.what
        run, labels = record.run, record.labels
        parse(NoOptions, argv[1:], "show")
    else:
        run, _, name = _recipe(argv, "show")
    import jax

    from contexture.models.model import example
    from contexture.models.shapes import count, dims_of, path_of
    from contexture.train.checkpoints.transfer import model_of, with_attention_of_this_device
    from contexture.train.mesh import find_devices
    from contexture.train.objectives import batch_fields, batch_sizes
    from contexture.train.optim.lora import add_adapters

    find_devices()
    model = model_of(with_attention_of_this_device(run), labels)
    inputs = example(batch_fields(run), batch_sizes(run, 1))
    shapes = jax.eval_shape(lambda key: add_adapters(model.init(key, inputs)["params"], run), jax.random.key(0))
    leaves = jax.tree_util.tree_flatten_with_path(shapes)[0]
    table = [{"path": path_of(k), "dims": dims_of(path_of(k)), "shape": list(x.shape)} for k, x in leaves]
    total = {"parameters": count(shapes), "backbone": count(shapes["backbone"])}
    return {"what": name, "config": to_json(run), **total, "table": table}


def plan_command(argv: list[str]) -> StreamingResult:
    """what training takes of devices that need not be here: contexture plan RECIPE --topology v5e:4x4"""
    request, _, name = _recipe(argv, "plan", PlanRequest)
    if not request.topology:
        raise ConfigError("plan needs the devices: --topology v5e:4x4, v5p:4x4x4, v6e:8x8, h100:1x8, h200:4x8 or cpu:8")
    from contexture.train.plan.topology import silence_compilers

    silence_compilers()
    import jax

    from contexture.train.plan.describe import describe, describe_all
    from contexture.train.plan.plan import captured_stderr, plan
    from contexture.train.plan.suggest import suggest
    from contexture.train.plan.topology import topology

    jax.config.update("jax_platforms", "cpu")

    def work(write: Callable[[str], None]) -> Result:
        with captured_stderr():  # libtpu warns that this is no machine with a TPU
            devices = topology(request.topology)
        if request.suggest:
            with interrupted_at_once():
                plans = suggest(request.run, devices, name)
            write(describe_all(plans))
            return {"plans": plans}
        with interrupted_at_once():
            logger.info(f"compiling {name} for {request.topology}; this takes a minute or more")
            made = plan(request.run, devices, name)
        write(describe(made))
        return made

    return StreamingResult(work)


def tokenizer_command(argv: list[str]) -> Result:
    """learn a vocabulary: contexture tokenizer KIND --input F… --vocab-size N --to DIR"""
    request = parse(TokenizerRequest, argv, "tokenizer")
    from contexture.data.storage import check_free
    from contexture.data.text.sources import expand
    from contexture.train.run.vocabulary import learn

    check_free(request.to)
    signals = Signals()
    try:
        files = expand(request.input, "input")
        tokenizer = learn(
            request.kind, files, request.vocab_size, request.lowercase, signals, split=request.word_splitter
        )
    finally:
        signals.close()
    tokenizer.save(Path(request.to))
    return {"tokenizer": request.to, "vocab_size": tokenizer.size, "fingerprint": tokenizer.fingerprint}


def prepare_command(argv: list[str]) -> Result:
    """tokenise once into shards: contexture prepare RECIPE --input F… --to DIR"""
    request = parse(PrepareRequest, argv, "prepare")
    from contexture.configs import recipe
    from contexture.data.pretraining.tokenize_corpus import prepare
    from contexture.data.storage import check_free, left_partials
    from contexture.data.text.sources import expand
    from contexture.data.tokenizers.registry import load_tokenizer
    from contexture.train.run.vocabulary import check_tokenizer_kind, learn

    run = recipe(request.recipe)
    try:
        data = dataclasses.replace(run.data, path=request.input, dev=request.dev, dev_fraction=request.dev_fraction)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    check_free(request.to)
    for left in left_partials(Path(request.to)):
        logger.warning(f"{left} is what a preparation that was killed has left; delete it unless one is at work there")
    signals = Signals()
    try:
        if request.tokenizer:
            tokenizer = load_tokenizer(request.tokenizer, data.lowercase, data.word_splitter)
        else:
            files, kind, size = expand(request.input, "input"), data.vocabulary, run.model.vocab
            tokenizer = learn(kind, files, size, data.lowercase, signals, data.documents, data.word_splitter)
        check_tokenizer_kind(run, tokenizer.kind)
        progress = lambda done, total: signals.check()  # noqa: E731
        shards = prepare(data, tokenizer, Path(request.to), progress, stream=run.stream)
    finally:
        signals.close()
    splits = {name: {"documents": s.documents, "sentences": s.sentences, "tokens": s.tokens} for name, s in
              shards.splits.items()}  # fmt: skip
    summary = {"shards": request.to, "vocab_size": tokenizer.size, "fingerprint": shards.fingerprint}
    if tokenizer.unk is not None:
        summary["unknown"] = float(shards.unigrams()[tokenizer.unk] / max(shards.unigrams().sum(), 1))
    return {**summary, **splits}


def pretrain_command(argv: list[str]) -> Result | None:
    """train a recipe: contexture pretrain RECIPE --dir RUN --data.path F… [--field value …]"""
    return _train(lambda: _recipe(argv, "pretrain")[:2])


def finetune_command(argv: list[str]) -> Result | None:
    """teach a run a task: contexture finetune RUN --task NAME | --task.kind K --task.train F --dir RUN2"""
    return _train(lambda: _finetuning(argv))


def _finetuning(argv: list[str]) -> tuple[Run, Run]:
    """Returns (the run with its overrides, its recipe with the model of the run that it is initialised from)."""
    from contexture.configs import task
    from contexture.configs.finetuning import load_source_run, task_run

    argv = expand_aliases(argv)
    name = find_option(argv, "--task.name") or find_option(argv, "--task.kind")
    usage = "contexture finetune RUN --task NAME, or --task.kind classify|regress|tag|choice --task.train F"
    if not argv or argv[0].startswith("-"):
        if any(word in ("-h", "--help") for word in argv):
            return parse(Run, argv, "finetune RUN", task("classify")), Run()
        raise ConfigError(f"finetune wants the run to begin from first: {usage}")
    if not name and not any(word in ("-h", "--help") for word in argv):
        raise ConfigError(f"finetune wants a task: {usage}; `contexture recipes` lists the names")
    name = name or "classify"
    source, place = load_source_run(Path(argv[0]), Path(find_option(argv, "--dir") or "."))
    base = task_run(source, place, argv[0], name, random="--init.random" in argv)
    base = apply_exclusive_options(base, argv)
    run = parse(Run, argv[1:], "finetune", base)
    if run.task.kind != base.task.kind:
        raise ConfigError(f"task.name={name} does not fit task.kind={run.task.kind}; give one of them")
    return run, base


def _train(read_argv: Callable[[], tuple[Run, Run]]) -> Result | None:
    """Trains the run that the arguments describe; read with signals noted, since reading may take seconds."""
    signals = Signals()
    try:
        run, base = read_argv()
        signals.check()
        from contexture.train.loop import train

        with results_alone() if run.mesh.distributed else contextlib.nullcontext():
            folder = train(run, base, signals)
        import jax

        from contexture.train.run.divergence import check_not_diverged
        from contexture.train.run.folder import steps
        from contexture.train.run.report import read_metrics

        if jax.process_index() > 0:
            return None
        check_not_diverged(folder)
        last = {r["split"]: r for r in read_metrics(folder / "metrics.jsonl")}
        return {"run": str(folder), "step": max(steps(folder / "checkpoints"), default=0), **last}
    finally:
        signals.close()
