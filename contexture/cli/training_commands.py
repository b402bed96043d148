"""The commands that take a recipe, or train: argv → the printed result."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from contexture.cli.argv import apply_exclusive_options, expand_aliases, find_option, take_option
from contexture.cli.grid_options import first_options, join_repeated, read_grid, table, table_rows, wants_grid
from contexture.cli.help import wants_help
from contexture.cli.output import Result, StreamingResult, TwofoldResult, fit_column, results_alone, terminal_width
from contexture.cli.parse import option_names, parse
from contexture.cli.settings_file import read_settings, with_settings
from contexture.data.pretraining.shards import Shards
from contexture.option_scope import check_effects
from contexture.requests import CheckRequest, FinetuneRequest, NoOptions, PlanRequest, ShowShardsRequest
from contexture.table_files import check_table, write_table
from contexture.train.errors import ConfigError
from contexture.train.run.signals import Signals
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import read, to_json

logger = logging.getLogger(__name__)
R = TypeVar("R", bound=Run)


def _recipe(argv: list[str], command: str, kind: type[R] = Run) -> tuple[R, Run, str]:
    """Returns (the run with its overrides, the unchanged recipe, the recipe's name). kind: Run or a subclass."""
    from contexture.configs import recipe
    from contexture.configs.finetuning import check_same_sizes, load_source_run, pretrain_further

    name = argv[0] if argv and not argv[0].startswith("-") else ""
    if not name and wants_help(argv):
        return parse(kind, argv, command), Run(), ""
    if not name:
        raise ConfigError(f"{command} wants a recipe first: contexture {command} bert.tiny …")
    if Path(name).is_dir():
        raise ConfigError(f"{name} is a folder; {command} wants a recipe first: contexture {command} bert.tiny …")
    base = recipe(name)
    file, argv = take_option(expand_aliases(argv[1:]), "--config")
    settings = read_settings(file)
    # The run.json of a pretraining has options of a task too, with task.kind off: these are let pass.
    if options := [word for word in (*argv, *(f"--{name}" for name in settings)) if word.startswith("--task.")]:
        if settings.get("task.kind") != "off" or options[0] in argv:
            raise ConfigError(f"{command} {name} reads text and no task; contexture finetune RUN {options[0]} …")
    source = None
    if folder := find_option(argv, "--init.run") or settings.get("init.run"):
        source = load_source_run(Path(folder), Path(find_option(argv, "--dir") or "."))[0]
        base = pretrain_further(source, base, folder)
    given = apply_exclusive_options(with_settings(base, settings, file), argv)
    default = kind(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Run)})
    run = parse(kind, argv, f"{command} {name}", default)
    check_effects({*option_names(argv), *_own(settings, file)}, [run], base)
    if source:
        check_same_sizes(run, source)
    return run, apply_exclusive_options(base, argv), name


def recipes_command(argv: list[str]) -> Result:
    """Lists what can be trained, one line each."""
    from contexture.configs import recipes, task_recipes

    parse(NoOptions, argv, "recipes")
    both = {"recipes": recipes(), "tasks": task_recipes()}
    return {kind: {name: str(f.__doc__).strip().splitlines()[0] for name, f in of.items()} for kind, of in both.items()}


def show_command(argv: list[str]) -> Result | TwofoldResult:
    """Returns the resolved configuration and the table of parameters, or what prepared text holds; nothing runs."""
    if argv and argv[0][:1] != "-" and Shards.is_at(argv[0]):
        return _show_shards(argv)
    labels: tuple[str, ...] = ()
    if argv and argv[0][:1] != "-" and (Path(argv[0]) / "run.json").exists():
        record, name = read(Path(argv[0])), argv[0]
        run, labels = record.run, record.labels
        parse(NoOptions, argv[1:], "show")
    else:
        run, _, name = _recipe(argv, "show")
    import jax

    from contexture.models.families import example
    from contexture.models.shapes import count, dims_of, path_of
    from contexture.train.checkpoints.transfer import model_of, with_attention_of_this_device
    from contexture.train.mesh import find_devices
    from contexture.train.objectives import batch_fields, batch_sizes
    from contexture.train.optim.lora import add_adapters

    # An error about devices is one line here; within jax it would be a traceback.
    find_devices()
    model = model_of(with_attention_of_this_device(run), labels)
    inputs = example(batch_fields(run), batch_sizes(run, 1))
    shapes = jax.eval_shape(lambda key: add_adapters(model.init(key, inputs)["params"], run, key), jax.random.key(0))
    leaves = jax.tree_util.tree_flatten_with_path(shapes)[0]
    table = [{"path": path_of(k), "dims": dims_of(path_of(k)), "shape": list(x.shape)} for k, x in leaves]
    total = {"parameters": count(shapes), "backbone": count(shapes["backbone"])}
    return {"what": name, "config": to_json(run), **total, "table": table}


def _show_shards(argv: list[str]) -> TwofoldResult:
    request = parse(ShowShardsRequest, argv, "show")
    from contexture.analysis.shards_page import check_page, describe_shards, grouped_sources, write_shards_page

    if request.to:
        check_page(Path(request.to))
    described = describe_shards(Path(request.shards))
    shown: dict[str, object] = {**described, "sources": grouped_sources(described["sources"])}
    if request.to:
        write_shards_page(described, Path(request.to))
        shown["to"] = request.to
    return TwofoldResult(json={**described, **({"to": request.to} if request.to else {})}, shown=shown)


def check_command(argv: list[str]) -> TwofoldResult:
    """Says what this host has and lacks for a run, in one table; exit code 1 where something is missing."""
    request = parse(CheckRequest, argv, "check")
    import os

    from contexture.train.check import check_host

    with Signals("stopped, nothing was left behind"):
        result = check_host(request.dir, os.environ)
    shown = {name: value for name, value in result.items() if name != "ok"}
    return TwofoldResult(json=dict(result), shown=shown, code=0 if result["ok"] else 1)


def plan_command(argv: list[str]) -> StreamingResult:
    """Says what training takes of devices that need not be here: memory, time, what bounds it."""
    request, name = _planned(argv)
    if not request.topology:
        raise ConfigError("plan needs the devices: --topology v5e:4x4, v5litepod-16, v5p:4x4x4, h100:1x8, t4 or cpu:8")
    from contexture.train.plan.topology import silence_compilers

    silence_compilers()
    import jax

    from contexture.train.plan.describe import COLUMN, describe, describe_all, describe_nearest
    from contexture.train.plan.plan import captured_stderr, of_phases, plan, shared_by
    from contexture.train.plan.suggest import nearest, suggest
    from contexture.train.plan.topology import topology

    # Plans are compiled for devices that are only described: this machine needs no accelerator.
    jax.config.update("jax_platforms", "cpu")

    def work(write: Callable[[str], None]) -> Result | TwofoldResult:
        with captured_stderr():  # libtpu warns that this is no machine with a TPU
            devices = topology(request.topology, request.slice_gbps)
        if request.suggest:
            plans = suggest(request.run, devices, name)
            write(describe_all(plans))
            return _with_code({"plans": plans}, plans[0]["fits"])
        phases, results = of_phases(request.run), list[Result]()
        # All of them before the first, which takes minutes.
        for run in phases:
            shared_by(run, devices)
        logger.info(f"compiling {name} for {request.topology}; this takes a minute or more")
        for number, run in enumerate(phases, 1):
            if len(phases) > 1:
                write(f"phase {number} of {len(phases)}\n")
            made: Result = plan(run, devices, name)
            write(fit_column(describe(made), COLUMN, terminal_width()))
            if not made["fits"]:
                write("\n")
                logger.info("it does not fit; looking for what does")
                found = nearest(run, devices, name)
                write(fit_column(describe_nearest(found), COLUMN, terminal_width()))
                made = {**made, "nearest": found}
            results.append(made)
            write("\n" * (number < len(phases)))
        fits = all(made["fits"] for made in results)
        return _with_code(results[0] if len(results) == 1 else {"phases": results}, fits)

    return StreamingResult(work)


def _with_code(result: Result, fits: bool) -> TwofoldResult:
    """Returns a plan that ends with exit code 1 where nothing fits, so that scripts see it."""
    return TwofoldResult(json=result, shown={}, code=0 if fits else 1)


def _planned(argv: list[str]) -> tuple[PlanRequest, str]:
    """Returns (the training to plan, its name): of a recipe, of a run, or the fine-tuning of either on a task."""
    from contexture.configs import recipe
    from contexture.configs.finetuning import finetune_run

    given, (file, argv) = argv, take_option(expand_aliases(argv), "--config")
    name = argv[0] if argv and not argv[0].startswith("-") else ""
    is_run = bool(name) and (Path(name) / "run.json").exists()
    task = find_option(argv, "--task.name") or find_option(argv, "--task.kind")
    if wants_help(argv) or not name or not (task or is_run):
        request, _, name = _recipe(given, "plan", PlanRequest)
        return request, name
    base = read(Path(name)).run if is_run else recipe(name)
    if task:  # of a GPT, the tokens that separate a task's texts add three rows
        base = finetune_run(base, "", task, task_vocabulary=getattr(base.model, "vocab", 0) + 3)
    start, settings = base, read_settings(file)
    base = apply_exclusive_options(with_settings(base, settings, file), argv)
    default = PlanRequest(**{field.name: getattr(base, field.name) for field in dataclasses.fields(Run)})
    request = parse(PlanRequest, argv[1:], f"plan {name}", default)
    check_effects({*option_names(argv), *_own(settings, file)}, [request.run], start)
    if request.run.reads_features and request.data.features != "off":
        raise ConfigError(
            "with optim.frozen=backbone a step trains the heads alone, on stored features of the backbone, and needs "
            "little; give --data.features off to plan the step that computes the backbone too"
        )
    return request, name


def pretrain_command(argv: list[str]) -> TwofoldResult | None:
    """Trains a recipe, or resumes it."""
    return _train(lambda: _recipe(argv, "pretrain")[:2])


def finetune_command(argv: list[str]) -> TwofoldResult | None:
    """Teaches a run a task, or resumes that; with --grid or --seeds, several runs, which are compared."""
    if wants_grid(argv) and not wants_help(argv):
        return _train_grid(argv)

    def read_argv() -> tuple[Run, Run]:
        asked = _finetuning(argv)
        if asked.request.table:
            raise ConfigError("--table is for several runs; give --grid or --seeds too, or leave --table out")
        run = asked.request.run
        check_effects(asked.options | asked.settings, [run], asked.base)
        if not run.mesh.distributed:
            _check_examples([run])
        return run, asked.base

    return _train(read_argv)


def _train_grid(argv: list[str]) -> TwofoldResult:
    """Trains the runs of a grid that are missing. A grid that is complete is read, and needs no jax."""
    from contexture.grid_search import make_grid
    from contexture.train.grid.train_grid import check_grid, train_grid

    signals = Signals()
    try:
        argv = join_repeated(argv, "--grid")
        request, base, options, settings = _grid_finetuning(argv)
        if "grid" in options and not request.grid:
            raise ConfigError("--grid wants a field and its values: --grid optim.peak-lr=2e-5,3e-5")
        grid = make_grid(request.run, read_grid(request.grid, request.run), request.seeds, options)
        check_effects({*options, *settings, *grid.values}, grid.runs, base)
        check_grid(grid)
        if request.table:
            check_table(Path(request.table), *request.task.train, *request.task.dev, *request.task.test)
        _check_examples(grid.runs)
        signals.check()
        result = train_grid(grid, base, signals)
        if request.table:
            write_table(Path(request.table), table_rows(result))
        written = {"table": request.table} if request.table else {}
        return TwofoldResult(json={**result, **written}, shown={**table(result, grid.base), **written})
    finally:
        signals.close()


class _Finetuning(NamedTuple):
    """What the arguments of finetune say."""

    request: FinetuneRequest
    base: Run
    """The recipe, with the model of the run that it is initialised from."""
    options: set[str]
    """The options that were given, as fields."""
    settings: set[str]
    """The options that --config gave."""


def _grid_finetuning(argv: list[str]) -> _Finetuning:
    """As `_finetuning`, but an option may need a value that only --grid gives."""
    try:
        return _finetuning(argv)
    except ConfigError as error:
        # Parsed once more with a value of each field that varies, so that the options can be checked together.
        first = first_options(argv)
        try:
            asked = _finetuning([*argv, *first])
        except ConfigError:
            raise error from None
        return asked._replace(options=asked.options - {*option_names(first)})


def _check_examples(runs: list[Run]) -> None:
    """Looks at the examples, which are the same for all of these runs, unless each of them has its own copy already."""
    from contexture.data.tasks.read.read_examples import check_examples

    if not all((Path(run.dir) / "data").exists() for run in runs):
        check_examples(runs[0].task, runs[0].data.context)


def _finetuning(argv: list[str]) -> _Finetuning:
    from contexture.configs import recipes
    from contexture.configs.finetuning import check_same_sizes, load_source_run, task_run

    file, argv = take_option(expand_aliases(argv), "--config")
    usage = "contexture finetune RUN --task NAME, or --task.kind classify|regress|tag|choice|span --task.train FILE"
    if not argv or argv[0].startswith("-"):
        if wants_help(argv):
            return _Finetuning(parse(FinetuneRequest, argv, "finetune"), Run(), set(), set())
        raise ConfigError(f"finetune wants the run to begin from first: {usage}")
    if argv[0] in recipes() and not Path(argv[0]).exists():
        raise ConfigError(f"{argv[0]} is a recipe, not a run; train it: contexture pretrain {argv[0]} --dir RUN …")
    settings = read_settings(file) | {"init.run": argv[0]} if file else {}
    asked = {name: find_option(argv, f"--{name}") or str(settings.get(name, "")) for name in ("task.name", "task.kind")}
    name = next((value for value in asked.values() if value not in ("", "off")), "")
    if not name and not wants_help(argv):
        raise ConfigError(f"finetune wants a task: {usage}; `contexture recipes` lists the names")
    name = name or "classify"
    source, place = load_source_run(Path(argv[0]), Path(find_option(argv, "--dir") or "."))
    # The task decides the defaults, so it is looked up before the other arguments are parsed.
    base = task_run(source, place, argv[0], name, random="--init.random" in argv)
    given = apply_exclusive_options(with_settings(base, settings, file), argv)
    default = FinetuneRequest(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Run)})
    run = parse(FinetuneRequest, argv[1:], f"finetune {argv[0]}", default)
    if run.task.kind != base.task.kind:
        raise ConfigError(f"task.name={name} does not fit task.kind={run.task.kind}; give one of them")
    check_same_sizes(run, source)
    if not run.task.train:
        raise ConfigError("task.train is empty; give the examples to learn from: --task.train FILE")
    return _Finetuning(run, apply_exclusive_options(base, argv), {*option_names(argv)}, _own(settings, file))


def _own(settings: Mapping[str, object], file: str) -> set[str]:
    """Returns the settings of a file that the user wrote; a run.json gives none: it has settings without effect too."""
    return set() if Path(file).name == "run.json" else {*settings} - {"init.run"}


def _train(read_argv: Callable[[], tuple[Run, Run]]) -> TwofoldResult | None:
    """Trains the run that the arguments describe; read with signals noted, since reading may take seconds.

    Programs get the last figures. People have just read the run's summary, which ends with what to do next.
    """
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
        step = max(steps(folder / "checkpoints"), default=0)
        return TwofoldResult(json={"run": str(folder), "step": step, **last}, shown={})
    finally:
        signals.close()
