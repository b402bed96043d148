"""Contexture's one door: `contexture COMMAND …` or `python contexture.py COMMAND …`; and `from contexture import load`.

Results go to stdout (with --json one JSON object and nothing else); progress, tables and warnings go to stderr.
Exit codes: 0 done, 1 failed (disk, numbers, checkpoint), 2 the user's words or files were wrong, 75 saved on SIGTERM
(start me again), 130 saved on Ctrl-C.
"""

import contextlib
import dataclasses
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import tyro

from train.config import CheckpointError, ConfigError, Diverged, Run, did_you_mean, fields, read, to_json
from train.signals import Interrupted, Signals

if TYPE_CHECKING:
    from data.tokenizer import WordPiece
    from models.model import Model

T = TypeVar("T")
Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Show:
    """The resolved configuration and the parameter table; nothing runs."""

    what: tyro.conf.Positional[str]
    """A recipe or the folder of a run."""


@dataclass(frozen=True, kw_only=True)
class LearnTokenizer:
    """Learn a vocabulary from text."""

    kind: tyro.conf.Positional[Literal["wordpiece"]]
    input: tuple[str, ...]
    """Text: files or a folder of *.txt and *.jsonl."""
    vocab_size: int = 30522
    """Most pieces."""
    to: str
    """The tokenizer's folder."""
    lowercase: bool = True
    """Lower-case and strip accents."""


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Tokenise text once into shards, which any number of runs may then read: --data.path FOLDER."""

    recipe: tyro.conf.Positional[str]
    input: tuple[str, ...]
    """Text: files or a folder of *.txt and *.jsonl."""
    to: str
    """The shards' folder."""
    tokenizer: str = ""
    """A tokenizer folder or a published vocab.txt; empty: learn the recipe's vocabulary on the text."""
    dev: tuple[str, ...] = ()
    """Held-out text, like input."""
    dev_fraction: float = 0.0
    """Instead of dev: hold out the end of each file."""


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Held-out figures of a run's newest good checkpoint."""

    run: tyro.conf.Positional[str]
    """The run's folder."""
    split: Literal["dev"] = "dev"
    step: int = 0
    """Another checkpoint than the newest."""


def parse(kind: type[T], words: list[str], command: str, default: T | None = None) -> T:
    """The user's words as a `kind`, through tyro. Raises ConfigError in one line where they are not."""
    said = io.StringIO()
    width, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "1000"
    if any(word in ("-h", "--help") for word in words):
        os.environ["COLUMNS"] = width or "110"
    given: Any = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(said):
            found, unknown = tyro.cli(kind, args=words, prog=f"contexture {command}", return_unknown_args=True, **given)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ConfigError(_in_one_line(said.getvalue())) from None
    finally:
        os.environ.pop("COLUMNS") if width is None else os.environ.update(COLUMNS=width)
    if unknown:
        known = [name.replace("_", "-") for name in (fields(found) if dataclasses.is_dataclass(found) else ())]
        word = unknown[0]
        raise ConfigError(f"{command} does not know {word!r}{did_you_mean(word.lstrip('-'), known)}; --help lists all")
    return found


def _in_one_line(box: str) -> str:
    """What tyro says in a box, as one line: the first block between its rules. Its title stands in the frame, or, where
    stderr knows no Unicode, as a block before it."""
    blocks, framed = [""], False
    for line in box.splitlines():
        text = line.strip("│|╭╮╰╯+ ")
        if line.lstrip().startswith(("╭", "+")):
            framed = True
        elif text and set(text) <= {"─", "-"}:
            blocks.append("")
        else:
            blocks[-1] = f"{blocks[-1]} {text}".strip()
    blocks = [block for block in blocks if block]
    text = blocks[0 if framed or len(blocks) == 1 else 1].removeprefix("Error parsing ") if blocks else box
    for section in ("Run", "model", "data", "optim", "mesh", "save", "log", "evaluate"):
        text = text.removeprefix(f"{section}: ")
    return text


def _recipe(words: list[str], command: str) -> tuple[Run, Run, str]:
    """(the run with its overrides, the recipe as it is, the recipe's name)."""
    from configs import recipe

    name = words[0] if words and not words[0].startswith("-") else ""
    if not name and any(word in ("-h", "--help") for word in words):
        return parse(Run, words, f"{command} RECIPE"), Run(), ""
    if not name:
        raise ConfigError(f"{command} wants a recipe first: contexture {command} bert.tiny …")
    base = recipe(name)
    return parse(Run, words[1:], f"{command} {name}", base), base, name


def recipes_command(words: list[str]) -> Result:
    """what can be trained, one line each"""
    from configs import recipes

    parse(_Nothing, words, "recipes")
    return {"recipes": {name: (f.__doc__ or "").strip().splitlines()[0] for name, f in recipes().items()}}


@dataclass(frozen=True)
class _Nothing:
    """What can be trained, one line each."""


def show_command(words: list[str]) -> Result:
    """the resolved config and parameter table; nothing runs"""
    asked = parse(Show, words[:1], "show") if not words or words[0][:1] == "-" else Show(what=words[0])
    if (Path(asked.what) / "run.json").exists():
        run, name = read(Path(asked.what))[0], asked.what
        parse(_Nothing, words[1:], "show")
    else:
        run, _, name = _recipe(words, "show")
    import jax

    from models.model import build, example
    from models.shapes import count, dims_of, path_of
    from train.objectives import OBJECTIVES, batch_fields, batch_sizes

    model = build(run.model, OBJECTIVES[run.objective].heads)
    line = example(batch_fields(run), batch_sizes(run, 1))
    shapes = jax.eval_shape(lambda key: model.init(key, line)["params"], jax.random.key(0))
    leaves = jax.tree_util.tree_flatten_with_path(shapes)[0]
    table = [{"path": path_of(k), "dims": dims_of(path_of(k)), "shape": list(x.shape)} for k, x in leaves]
    total = {"parameters": count(shapes), "backbone": count(shapes["backbone"])}
    return {"what": name, "config": to_json(run), **total, "table": table}


def tokenizer_command(words: list[str]) -> Result:
    """learn a vocabulary: contexture tokenizer wordpiece --input F… --vocab-size N --to DIR"""
    asked = parse(LearnTokenizer, words, "tokenizer")
    from data.sources import check_free, expand
    from train.directory import learn

    check_free(Path(asked.to))
    signals = Signals()
    try:
        tokenizer = learn(expand(asked.input, "input"), asked.vocab_size, asked.lowercase, signals.check)
    finally:
        signals.close()
    tokenizer.save(Path(asked.to))
    return {"tokenizer": asked.to, "pieces": tokenizer.size, "fingerprint": tokenizer.fingerprint}


def prepare_command(words: list[str]) -> Result:
    """tokenise once into shards: contexture prepare RECIPE --input F… --to DIR"""
    asked = parse(Prepare, words, "prepare")
    from configs import recipe
    from data.prepare import prepare
    from data.sources import check_free, expand
    from data.tokenizer import load_tokenizer
    from train.directory import fits, learn

    run = recipe(asked.recipe)
    try:
        data = dataclasses.replace(run.data, path=asked.input, dev=asked.dev, dev_fraction=asked.dev_fraction)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    check_free(Path(asked.to))
    signals = Signals()
    try:
        if asked.tokenizer:
            tokenizer = load_tokenizer(asked.tokenizer, data.lowercase)
        else:
            tokenizer = learn(expand(asked.input, "input"), run.model.vocab, data.lowercase, signals.check)
        fits(run, tokenizer)
        shards = prepare(data, tokenizer, Path(asked.to), lambda done, total: signals.check())
    finally:
        signals.close()
    splits = {name: {"documents": s.documents, "sentences": s.sentences, "tokens": s.tokens} for name, s in
              shards.splits.items()}  # fmt: skip
    return {"shards": asked.to, "pieces": tokenizer.size, "fingerprint": shards.fingerprint, **splits}


def pretrain_command(words: list[str]) -> Result | None:
    """train a recipe: contexture pretrain RECIPE --dir RUN --data.path F… [--field value …]"""
    signals = Signals()
    try:
        run, base, _ = _recipe(words, "pretrain")
        signals.check()
        from train.loop import train

        with _results_alone() if run.mesh.distributed else contextlib.nullcontext():
            folder = train(run, base, signals)
        import jax

        from train.report import read_metrics

        if jax.process_index() > 0:
            return None
        last = {r["split"]: r for r in read_metrics(folder / "metrics.jsonl")}
        return {"run": str(folder), "step": run.steps, **last}
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


def evaluate_command(words: list[str]) -> Result:
    """held-out figures of a run: contexture evaluate RUN [--step N]"""
    asked = parse(Evaluate, words, "evaluate")
    read(Path(asked.run))
    from train.evaluate import evaluate_run

    return evaluate_run(Path(asked.run), asked.step or None, asked.split, _warn)


COMMANDS: dict[str, Callable[[list[str]], Result | None]] = {
    "recipes": recipes_command,
    "tokenizer": tokenizer_command,
    "prepare": prepare_command,
    "pretrain": pretrain_command,
    "evaluate": evaluate_command,
    "show": show_command,
}


def _warn(line: str) -> None:
    print(line, file=sys.stderr)


def _print(result: Result, indent: str = "") -> None:
    """A result for a person."""
    for name, value in result.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            _print(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            print(f"{indent}{name}")
            for row in value:
                print(
                    indent
                    + "  "
                    + "  ".join(f"{cell}".ljust(46 if i == 0 else 6) for i, cell in enumerate(row.values()))
                )
        else:
            print(f"{indent}{name:<{max(24 - len(indent), 1)}} {value}")


def _help() -> str:
    lines = [f"  {name:<10} {function.__doc__}" for name, function in COMMANDS.items()]
    return "contexture COMMAND …\n\n" + "\n".join(lines) + "\n\ncontexture COMMAND --help tells more."


def run_command(words: list[str]) -> Result | None:
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
    from data.errors import DataError

    try:
        result = run_command(words)
        if result is not None:
            print(json.dumps(result, ensure_ascii=False)) if as_json else _print(result)
        return 0
    except SystemExit as stop:
        return int(stop.code or 0)
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return stop.code
    except KeyboardInterrupt:
        print("Ctrl-C", file=sys.stderr)
        return 130
    except (ConfigError, DataError) as error:
        return _fail(error, 2, debug)
    except (CheckpointError, Diverged) as error:
        return _fail(error, 1, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(error, 1, debug, f"{where}{error.strerror or error}")
    except Exception as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            told = "the device has too little memory; lower --data.batch, or raise --optim.accumulate or --mesh.fsdp"
            return _fail(error, 1, debug, told)
        return _fail(error, 1, debug, f"not foreseen: {error}; --debug shows where")


def _fail(error: BaseException, code: int, debug: bool, says: str = "") -> int:
    if debug:
        traceback.print_exception(error)
    print(f"{type(error).__name__}: {' '.join((says or str(error)).split())}", file=sys.stderr)
    return code


def load(run: str | Path, step: int | None = None) -> "tuple[Model, Any, WordPiece]":
    """A run opened in Python: (model, params, tokenizer), from its newest good checkpoint or that of `step`.

    `model.apply({"params": params}, batch)` with `batch = data.layouts.bert_texts(tokenizer, texts, length)`;
    raises ConfigError where the folder is no run, CheckpointError where no checkpoint is good.
    """
    import jax

    from data.tokenizer import load_tokenizer
    from train import mesh as meshes
    from train.config import MeshConfig
    from train.transfer import load_parameters

    folder = Path(run)
    settings, described = read(folder)
    tokenizer = load_tokenizer(folder / "tokenizer", settings.data.lowercase)
    if described.get("tokenizer") != tokenizer.fingerprint:
        raise ConfigError(f"{folder / 'tokenizer'} is not the vocabulary that this run was trained with; put it back")
    meshes.prepare_jax(settings.model.dtype)
    mesh = meshes.build(MeshConfig(), jax.devices()[:1])
    loaded = load_parameters(folder, settings, mesh, _warn, step)
    return loaded.model, loaded.params, tokenizer


if __name__ == "__main__":
    sys.exit(main())
