"""The commands that take a recipe, or train: their words → what is printed."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from contexture.api import warn
from contexture.cli.arguments import LearnTokenizer, NoArgs, Prepare, Show
from contexture.cli.output import Result, results_alone
from contexture.cli.parse import apply_exclusive_options, expand_aliases, find_option, parse
from contexture.models.config import ElmoConfig
from contexture.train.config import Run
from contexture.train.errors import ConfigError, Diverged
from contexture.train.options import InitConfig
from contexture.train.run.signals import Signals
from contexture.train.run_file import read, to_json


def _recipe(argv: list[str], command: str) -> tuple[Run, Run, str]:
    """(the run with its overrides, the recipe as it is, the recipe's name)."""
    from contexture.configs import recipe

    name = argv[0] if argv and not argv[0].startswith("-") else ""
    if not name and any(word in ("-h", "--help") for word in argv):
        return parse(Run, argv, f"{command} RECIPE"), Run(), ""
    if not name:
        raise ConfigError(f"{command} wants a recipe first: contexture {command} bert.tiny …")
    base = recipe(name)
    argv = expand_aliases(argv[1:])
    if folder := find_option(argv, "--init.run"):
        base = inherit_model(load_source_run([folder, *argv])[0], base)
    base = apply_exclusive_options(base, argv)
    if find_option(argv, "--objective") == "span":
        raise ConfigError("objective=span is of imported runs alone; leave it out")
    if args := [word for word in argv if word.startswith("--task.")]:
        raise ConfigError(f"{command} {name} reads text and no task; contexture finetune RUN {args[0]} …")
    return parse(Run, argv, f"{command} {name}", base), base, name


def recipes_command(argv: list[str]) -> Result:
    """what can be trained, one line each"""
    from contexture.configs import recipes, task_recipes

    parse(NoArgs, argv, "recipes")
    both = {"recipes": recipes(), "tasks": task_recipes()}
    return {kind: {name: str(f.__doc__).strip().splitlines()[0] for name, f in of.items()} for kind, of in both.items()}


def show_command(argv: list[str]) -> Result:
    """the resolved config and parameter table; nothing runs"""
    args = parse(Show, argv[:1], "show") if not argv or argv[0][:1] == "-" else Show(what=argv[0])
    labels: tuple[str, ...] = ()
    if (Path(args.what) / "run.json").exists():
        (run, described), name = read(Path(args.what)), args.what
        labels = tuple(described.get("labels", ()))
        parse(NoArgs, argv[1:], "show")
    else:
        run, _, name = _recipe(argv, "show")
    import jax

    from contexture.models.model import example
    from contexture.models.shapes import count, dims_of, path_of
    from contexture.train.checkpoints.transfer import model_of
    from contexture.train.mesh import find_devices
    from contexture.train.objectives import batch_fields, batch_sizes

    find_devices()
    model = model_of(run, labels)
    line = example(batch_fields(run), batch_sizes(run, 1))
    shapes = jax.eval_shape(lambda key: model.init(key, line)["params"], jax.random.key(0))
    leaves = jax.tree_util.tree_flatten_with_path(shapes)[0]
    table = [{"path": path_of(k), "dims": dims_of(path_of(k)), "shape": list(x.shape)} for k, x in leaves]
    total = {"parameters": count(shapes), "backbone": count(shapes["backbone"])}
    return {"what": name, "config": to_json(run), **total, "table": table}


def tokenizer_command(argv: list[str]) -> Result:
    """learn a vocabulary: contexture tokenizer KIND --input F… --vocab-size N --to DIR"""
    args = parse(LearnTokenizer, argv, "tokenizer")
    from contexture.data.storage import check_free
    from contexture.data.text.sources import expand
    from contexture.train.run.vocabulary import learn

    check_free(args.to)
    signals = Signals()
    try:
        files, check = expand(args.input, "input"), signals.check
        tokenizer = learn(args.kind, files, args.vocab_size, args.lowercase, check, split=args.split)
    finally:
        signals.close()
    tokenizer.save(Path(args.to))
    return {"tokenizer": args.to, "pieces": tokenizer.size, "fingerprint": tokenizer.fingerprint}


def prepare_command(argv: list[str]) -> Result:
    """tokenise once into shards: contexture prepare RECIPE --input F… --to DIR"""
    args = parse(Prepare, argv, "prepare")
    from contexture.configs import recipe
    from contexture.data.pretraining.tokenize_corpus import prepare
    from contexture.data.storage import check_free, left_partials
    from contexture.data.text.sources import expand
    from contexture.data.tokenizers.registry import load_tokenizer
    from contexture.train.run.vocabulary import check_tokenizer_kind, learn

    run = recipe(args.recipe)
    try:
        data = dataclasses.replace(run.data, path=args.input, dev=args.dev, dev_fraction=args.dev_fraction)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    check_free(args.to)
    for left in left_partials(Path(args.to)):
        warn(f"{left} is what a preparation that was killed has left; delete it unless one is at work there")
    signals = Signals()
    try:
        if args.tokenizer:
            tokenizer = load_tokenizer(args.tokenizer, data.lowercase, data.split)
        else:
            files, kind, size = expand(args.input, "input"), data.vocabulary, run.model.vocab
            tokenizer = learn(kind, files, size, data.lowercase, signals.check, data.documents, data.split)
        check_tokenizer_kind(run, tokenizer.kind)
        shards = prepare(data, tokenizer, Path(args.to), lambda done, total: signals.check(), say=warn)
    finally:
        signals.close()
    splits = {name: {"documents": s.documents, "sentences": s.sentences, "tokens": s.tokens} for name, s in
              shards.splits.items()}  # fmt: skip
    told = {"shards": args.to, "pieces": tokenizer.size, "fingerprint": shards.fingerprint}
    if tokenizer.unk is not None:
        told["unknown"] = float(shards.unigrams()[tokenizer.unk] / max(shards.unigrams().sum(), 1))
    return {**told, **splits}


def pretrain_command(argv: list[str]) -> Result | None:
    """train a recipe: contexture pretrain RECIPE --dir RUN --data.path F… [--field value …]"""
    return _train(lambda: _recipe(argv, "pretrain")[:2])


def finetune_command(argv: list[str]) -> Result | None:
    """teach a run a task: contexture finetune RUN --task NAME | --task.kind K --task.train F --dir RUN2"""
    return _train(lambda: _finetuning(argv))


def _finetuning(argv: list[str]) -> tuple[Run, Run]:
    """(the run with its overrides, its recipe with the model of the run that it begins from)."""
    from contexture.configs import as_elmo, as_gpt, task
    from contexture.data.layouts import with_task_tokens
    from contexture.data.tokenizers.registry import load_tokenizer

    argv = expand_aliases(argv)
    name = find_option(argv, "--task.name") or find_option(argv, "--task.kind")
    wanted = "contexture finetune RUN --task NAME, or --task.kind classify|regress|tag|choice --task.train F"
    if not argv or argv[0].startswith("-"):
        if any(word in ("-h", "--help") for word in argv):
            return parse(Run, argv, "finetune RUN", task("classify")), Run()
        raise ConfigError(f"finetune wants the run to begin from first: {wanted}")
    if not name and not any(word in ("-h", "--help") for word in argv):
        raise ConfigError(f"finetune wants a task: {wanted}; `contexture recipes` lists the names")
    source, folder = load_source_run(argv)
    base = task(name or "classify")
    data = dataclasses.replace(
        base.data,
        lowercase=source.data.lowercase,
        split=source.data.split,
        length=min(base.data.length, getattr(source.model, "length", base.data.length)),
        layout=source.data.layout,
    )
    head = source.head if source.task.kind == base.task.kind else base.head
    inherited = {"model": source.model, "data": data, "head": head, "init": InitConfig(run=argv[0])}
    elmo = isinstance(source.model, ElmoConfig)
    if elmo and base.task.kind == "choice":
        raise ConfigError("task.kind=choice is not for an ELMo; give a run of a BERT or a GPT")
    base = (
        as_elmo(base, inherited, scratch="--init.scratch" in argv) if elmo else dataclasses.replace(base, **inherited)
    )
    if source.data.layout == "gpt":
        base = as_gpt(base, with_task_tokens(load_tokenizer(folder / "tokenizer")).size)
    base = apply_exclusive_options(base, argv)
    return parse(Run, argv[1:], "finetune", base), base


def inherit_model(source: Run, base: Run) -> Run:
    """A recipe with the model of another run of its family, and its way to part words."""
    if type(source.model) is not type(base.model):
        return base
    length = min(base.data.length, getattr(source.model, "length", base.data.length))
    data = dataclasses.replace(
        base.data,
        split=source.data.split,
        lowercase=source.data.lowercase,
        length=length,
        predictions=min(base.data.predictions, length),
    )
    return dataclasses.replace(base, model=source.model, data=data)


def load_source_run(argv: list[str]) -> tuple[Run, Path]:
    """The run that a fine-tuning begins from, and its folder; where that is gone, the fine-tuning itself, which goes on
    without it."""
    here, folder = Path(argv[0]), Path(find_option(argv, "--dir") or ".")
    if os.path.realpath(folder) == os.path.realpath(here):
        raise ConfigError(f"--dir {folder} is the run to begin from; give another --dir")
    try:
        return read(here)[0], here
    except ConfigError:
        if here.exists() or not any((folder / "checkpoints").glob("[0-9]*")):
            raise
        return read(folder)[0], folder


def _train(read_words: Callable[[], tuple[Run, Run]]) -> Result | None:
    signals = Signals()
    try:
        run, base = read_words()
        signals.check()
        from contexture.train.loop import train

        with results_alone() if run.mesh.distributed else contextlib.nullcontext():
            folder = train(run, base, signals)
        import jax

        from contexture.data.tasks.example_store import ExampleStore
        from contexture.train.run.divergence import FAR, FAR_IN_REGRESSION, diverged_loss, uniform_loss
        from contexture.train.run.folder import steps
        from contexture.train.run.report import read_metrics

        if jax.process_index() > 0:
            return None
        trained, described = read(folder)
        if trained.objective == "regress":
            guess, far = ExampleStore.open(folder / "data").splits["train"].answers().var(), FAR_IN_REGRESSION
        else:
            guess, far = uniform_loss(trained, len(described.get("labels", ()))), FAR
        if rise := diverged_loss(read_metrics(folder / "metrics.jsonl"), guess, far):
            raise Diverged(
                f"the training loss rose from {rise[0]:.4g} in the first step to {rise[1]:.4g} in the last: the run "
                f"diverged, and is saved in {folder}; try a lower --optim.peak-lr or a longer --optim.warmup in "
                "another --dir"
            )
        last = {r["split"]: r for r in read_metrics(folder / "metrics.jsonl")}
        return {"run": str(folder), "step": max(steps(folder / "checkpoints"), default=0), **last}
    finally:
        signals.close()
