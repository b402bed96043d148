"""Contexture's one door: `contexture COMMAND …` or `python contexture.py COMMAND …`; and `from contexture import load`.

Results go to stdout (with --json one JSON object and nothing else); progress, tables and warnings go to stderr.
Exit codes: 0 done, 1 failed (disk, numbers, checkpoint), 2 the user's words or files were wrong, 75 saved on SIGTERM
(start me again), 130 saved on Ctrl-C.
"""

# ruff: noqa: E402  the address space is checked before libraries are loaded: under a small `ulimit -v` they abort
import contextlib
import dataclasses
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from train.limits import check_address_space

if Path(sys.argv[0]).stem == "contexture":
    try:
        check_address_space()
    except MemoryError as error:
        sys.exit(f"MemoryError: {error}")

from analysis import commands
from analysis.api import embed, evaluate, fill, generate, load, predict, score, warn
from data.visible import visible, visible_json
from models.config import ElmoConfig
from train.asked import Evaluate, LearnTokenizer, Nothing, Prepare, Show
from train.config import ConfigError, Diverged, Run, did_you_mean, read, to_json
from train.exits import exit_of
from train.options import InitConfig
from train.signals import Interrupted, Signals
from train.words import Streamed, parse, print_result, spelled_out, value_of, without_contradiction, write_out

__all__ = ["embed", "evaluate", "fill", "generate", "load", "predict", "score"]
Result = dict[str, Any]


def _recipe(words: list[str], command: str) -> tuple[Run, Run, str]:
    """(the run with its overrides, the recipe as it is, the recipe's name)."""
    from configs import recipe

    name = words[0] if words and not words[0].startswith("-") else ""
    if not name and any(word in ("-h", "--help") for word in words):
        return parse(Run, words, f"{command} RECIPE"), Run(), ""
    if not name:
        raise ConfigError(f"{command} wants a recipe first: contexture {command} bert.tiny …")
    base = recipe(name)
    words = spelled_out(words[1:])
    if folder := value_of(words, "--init.run"):
        base = _with_model_of(_begun_from([folder, *words])[0], base)
    base = without_contradiction(base, words)
    if value_of(words, "--objective") == "span":
        raise ConfigError("objective=span is of imported runs alone; leave it out")
    if asked := [word for word in words if word.startswith("--task.")]:
        raise ConfigError(f"{command} {name} reads text and no task; contexture finetune RUN {asked[0]} …")
    return parse(Run, words, f"{command} {name}", base), base, name


def recipes_command(words: list[str]) -> Result:
    """what can be trained, one line each"""
    from configs import recipes, tasks

    parse(Nothing, words, "recipes")
    both = {"recipes": recipes(), "tasks": tasks()}
    return {kind: {name: str(f.__doc__).strip().splitlines()[0] for name, f in of.items()} for kind, of in both.items()}


def show_command(words: list[str]) -> Result:
    """the resolved config and parameter table; nothing runs"""
    asked = parse(Show, words[:1], "show") if not words or words[0][:1] == "-" else Show(what=words[0])
    labels: tuple[str, ...] = ()
    if (Path(asked.what) / "run.json").exists():
        (run, described), name = read(Path(asked.what)), asked.what
        labels = tuple(described.get("labels", ()))
        parse(Nothing, words[1:], "show")
    else:
        run, _, name = _recipe(words, "show")
    import jax

    from models.model import example
    from models.shapes import count, dims_of, path_of
    from train.mesh import find_devices
    from train.objectives import batch_fields, batch_sizes
    from train.transfer import model_of

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
    from data.sources import expand
    from data.storage import check_free
    from train.vocabulary import learn

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
    from configs import recipe
    from data.prepare import prepare
    from data.sources import expand
    from data.storage import check_free, left_partials
    from data.tokenizer import load_tokenizer
    from train.vocabulary import fits_new, learn

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
        fits_new(run, tokenizer.kind)
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
    from configs import as_elmo, as_gpt, task
    from data.layouts import with_task_tokens
    from data.tokenizer import load_tokenizer

    words = spelled_out(words)
    name = value_of(words, "--task.name") or value_of(words, "--task.kind")
    wanted = "contexture finetune RUN --task NAME, or --task.kind classify|regress|tag|choice --task.train F"
    if not words or words[0].startswith("-"):
        if any(word in ("-h", "--help") for word in words):
            return parse(Run, words, "finetune RUN", task("classify")), Run()
        raise ConfigError(f"finetune wants the run to begin from first: {wanted}")
    if not name and not any(word in ("-h", "--help") for word in words):
        raise ConfigError(f"finetune wants a task: {wanted}; `contexture recipes` lists the names")
    source, folder = _begun_from(words)
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
    base = without_contradiction(base, words)
    return parse(Run, words[1:], "finetune", base), base


def _with_model_of(source: Run, base: Run) -> Run:
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


def _begun_from(words: list[str]) -> tuple[Run, Path]:
    """The run that a fine-tuning begins from, and its folder; where that is gone, the fine-tuning itself, which goes on
    without it."""
    here, folder = Path(words[0]), Path(value_of(words, "--dir") or ".")
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
        from train.loop import train

        with _results_alone() if run.mesh.distributed else contextlib.nullcontext():
            folder = train(run, base, signals)
        import jax

        from data.encoded import Store
        from train.checkpoint import steps
        from train.metrics import FAR, FAR_IN_REGRESSION, diverged_loss, uniform_loss
        from train.report import read_metrics

        if jax.process_index() > 0:
            return None
        trained, described = read(folder)
        if trained.objective == "regress":
            guess, far = Store.open(folder / "data").splits["train"].answers().var(), FAR_IN_REGRESSION
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


@contextlib.contextmanager
def _results_alone() -> Iterator[None]:
    """What libraries written in C print to stdout (which process reached which) goes to stderr."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def evaluate_command(words: list[str]) -> Result | None:
    """held-out figures of a run: contexture evaluate RUN [--task.dev F] [--split dev|test] [--step N…|best|all]"""
    asked = parse(Evaluate, words, "evaluate")
    read(Path(asked.run))
    from train import evaluate as evaluation

    signals = Signals("stopped; the same command begins again")
    try:
        with _results_alone() if asked.mesh.distributed else contextlib.nullcontext():
            what = evaluation.Asked(asked.split, asked.task.dev, asked.step, asked.batch, asked.to, asked.mesh)
            result = evaluation.evaluate_run(Path(asked.run), what, warn, signals.check)
    finally:
        signals.close()
    import jax

    return result if jax.process_index() == 0 else None


COMMANDS: dict[str, Callable[[list[str]], Result | Streamed | None]] = {
    "recipes": recipes_command,
    "tokenizer": tokenizer_command,
    "prepare": prepare_command,
    "pretrain": pretrain_command,
    "finetune": finetune_command,
    "evaluate": evaluate_command,
    "predict": commands.predict_command,
    "fill": commands.fill_command,
    "generate": commands.generate_command,
    "score": commands.score_command,
    "embed": commands.embed_command,
    "layers": commands.layers_command,
    "import": commands.import_command,
    "export": commands.export_command,
    "show": show_command,
}


def _help() -> str:
    lines = [f"  {name:<10} {function.__doc__}" for name, function in COMMANDS.items()]
    return "contexture COMMAND …\n\n" + "\n".join(lines) + "\n\ncontexture COMMAND --help tells more."


def run_command(words: list[str]) -> Result | Streamed | None:
    """One command by its words; None where only help was wanted."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return None
    command = COMMANDS.get(words[0])
    if command is None:
        raise ConfigError(
            f"there is no command {words[0]!r}{did_you_mean(words[0], COMMANDS)}; contexture --help lists them"
        )
    return command(words[1:])


def main(words: list[str] | None = None) -> int:
    """The door: run one command, say what went wrong in one line, return the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    as_json, debug = "--json" in words, "--debug" in words
    words = [word for word in words if word not in ("--json", "--debug")]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        result = run_command(words)
        if isinstance(result, Streamed):
            told = result.work((lambda text: None) if as_json else write_out)
            result = told if as_json else write_out("\n")
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


if __name__ == "__main__":
    sys.exit(main())
