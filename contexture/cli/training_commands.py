"""The commands that take a recipe, or train: their words → what is printed."""

import contextlib
import dataclasses
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


def _recipe(words: list[str], command: str) -> tuple[Run, Run, str]:
    """(the run with its overrides, the recipe as it is, the recipe's name)."""
    from contexture.configs import recipe

    name = words[0] if words and not words[0].startswith("-") else ""
    if not name and any(word in ("-h", "--help") for word in words):
        return parse(Run, words, f"{command} RECIPE"), Run(), ""
    if not name:
        raise ConfigError(f"{command} wants a recipe first: contexture {command} bert.tiny …")
    base = recipe(name)
    words = expand_aliases(words[1:])
    if folder := find_option(words, "--init.run"):
        base = inherit_model(load_source_run([folder, *words])[0], base)
    base = apply_exclusive_options(base, words)
    if find_option(words, "--objective") == "span":
        raise ConfigError("objective=span is of imported runs alone; leave it out")
    if asked := [word for word in words if word.startswith("--task.")]:
        raise ConfigError(f"{command} {name} reads text and no task; contexture finetune RUN {asked[0]} …")
    return parse(Run, words, f"{command} {name}", base), base, name


def recipes_command(words: list[str]) -> Result:
    """what can be trained, one line each"""
    from contexture.configs import recipes, task_recipes

    parse(NoArgs, words, "recipes")
    both = {"recipes": recipes(), "tasks": task_recipes()}
    return {kind: {name: str(f.__doc__).strip().splitlines()[0] for name, f in of.items()} for kind, of in both.items()}


def show_command(words: list[str]) -> Result:
    """the resolved config and parameter table; nothing runs"""
    asked = parse(Show, words[:1], "show") if not words or words[0][:1] == "-" else Show(what=words[0])
    labels: tuple[str, ...] = ()
    if (Path(asked.what) / "run.json").exists():
        (run, described), name = read(Path(asked.what)), asked.what
        labels = tuple(described.get("labels", ()))
        parse(NoArgs, words[1:], "show")
    else:
        run, _, name = _recipe(words, "show")
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


def tokenizer_command(words: list[str]) -> Result:
    """learn a vocabulary: contexture tokenizer KIND --input F… --vocab-size N --to DIR"""
    asked = parse(LearnTokenizer, words, "tokenizer")
    from contexture.data.storage import check_free
    from contexture.data.text.sources import expand
    from contexture.train.run.vocabulary import learn

    check_free(asked.to)
    signals = Signals()
    try:
        files, check = expand(asked.input, "input"), signals.check
        tokenizer = learn(asked.kind, files, asked.vocab_size, asked.lowercase, check, split=asked.split)
    finally:
        signals.close()
    tokenizer.save(Path(asked.to))
    return {"tokenizer": asked.to, "pieces": tokenizer.size, "fingerprint": tokenizer.fingerprint}


def prepare_command(words: list[str]) -> Result:
    """tokenise once into shards: contexture prepare RECIPE --input F… --to DIR"""
    asked = parse(Prepare, words, "prepare")
    from contexture.configs import recipe
    from contexture.data.pretraining.tokenize_corpus import prepare
    from contexture.data.storage import check_free, left_partials
    from contexture.data.text.sources import expand
    from contexture.data.tokenizers.registry import load_tokenizer
    from contexture.train.run.vocabulary import check_tokenizer_kind, learn

    run = recipe(asked.recipe)
    try:
        data = dataclasses.replace(run.data, path=asked.input, dev=asked.dev, dev_fraction=asked.dev_fraction)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    check_free(asked.to)
    for left in left_partials(Path(asked.to)):
        warn(f"{left} is what a preparation that was killed has left; delete it unless one is at work there")
    signals = Signals()
    try:
        if asked.tokenizer:
            tokenizer = load_tokenizer(asked.tokenizer, data.lowercase, data.split)
        else:
            files, kind, size = expand(asked.input, "input"), data.vocabulary, run.model.vocab
            tokenizer = learn(kind, files, size, data.lowercase, signals.check, data.documents, data.split)
        check_tokenizer_kind(run, tokenizer.kind)
        shards = prepare(data, tokenizer, Path(asked.to), lambda done, total: signals.check(), say=warn)
    finally:
        signals.close()
    splits = {name: {"documents": s.documents, "sentences": s.sentences, "tokens": s.tokens} for name, s in
              shards.splits.items()}  # fmt: skip
    told = {"shards": asked.to, "pieces": tokenizer.size, "fingerprint": shards.fingerprint}
    if tokenizer.unk is not None:
        told["unknown"] = float(shards.unigrams()[tokenizer.unk] / max(shards.unigrams().sum(), 1))
    return {**told, **splits}


def pretrain_command(words: list[str]) -> Result | None:
    """train a recipe: contexture pretrain RECIPE --dir RUN --data.path F… [--field value …]"""
    return _train(lambda: _recipe(words, "pretrain")[:2])


def finetune_command(words: list[str]) -> Result | None:
    """teach a run a task: contexture finetune RUN --task NAME | --task.kind K --task.train F --dir RUN2"""
    return _train(lambda: _finetuning(words))


def _finetuning(words: list[str]) -> tuple[Run, Run]:
    """(the run with its overrides, its recipe with the model of the run that it begins from)."""
    from contexture.configs import as_elmo, as_gpt, task
    from contexture.data.layouts import with_task_tokens
    from contexture.data.tokenizers.registry import load_tokenizer

    words = expand_aliases(words)
    name = find_option(words, "--task.name") or find_option(words, "--task.kind")
    wanted = "contexture finetune RUN --task NAME, or --task.kind classify|regress|tag|choice --task.train F"
    if not words or words[0].startswith("-"):
        if any(word in ("-h", "--help") for word in words):
            return parse(Run, words, "finetune RUN", task("classify")), Run()
        raise ConfigError(f"finetune wants the run to begin from first: {wanted}")
    if not name and not any(word in ("-h", "--help") for word in words):
        raise ConfigError(f"finetune wants a task: {wanted}; `contexture recipes` lists the names")
    source, folder = load_source_run(words)
    base = task(name or "classify")
    data = dataclasses.replace(
        base.data,
        lowercase=source.data.lowercase,
        split=source.data.split,
        length=min(base.data.length, getattr(source.model, "length", base.data.length)),
        layout=source.data.layout,
    )
    head = source.head if source.task.kind == base.task.kind else base.head
    begun = {"model": source.model, "data": data, "head": head, "init": InitConfig(run=words[0])}
    elmo = isinstance(source.model, ElmoConfig)
    if elmo and base.task.kind == "choice":
        raise ConfigError("task.kind=choice is not for an ELMo; give a run of a BERT or a GPT")
    base = as_elmo(base, begun, scratch="--init.scratch" in words) if elmo else dataclasses.replace(base, **begun)
    if source.data.layout == "gpt":
        base = as_gpt(base, with_task_tokens(load_tokenizer(folder / "tokenizer")).size)
    base = apply_exclusive_options(base, words)
    return parse(Run, words[1:], "finetune", base), base


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


def load_source_run(words: list[str]) -> tuple[Run, Path]:
    """The run that a fine-tuning begins from, and its folder; where that is gone, the fine-tuning itself, which goes on
    without it."""
    here, folder = Path(words[0]), Path(find_option(words, "--dir") or ".")
    if folder.resolve() == here.resolve():
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
