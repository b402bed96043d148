"""A run, whole: every choice that makes it what it is, in one frozen tree. Needs no jax.

`run.json` is this tree written down; `read` is its one reader.
"""

import dataclasses
import hashlib
import json
import math
import os
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from data.config import DataConfig, TaskConfig
from data.errors import did_you_mean
from models.config import BertConfig, ModelConfig

FORMAT = 1


class ConfigError(ValueError):
    """The user's words do not fit together: what is wrong with the value got, what was wanted, how to mend it."""


class CheckpointError(Exception):
    """A checkpoint, or the folder of a run, is not what it should be."""


class Diverged(Exception):
    """Losses or gradients have not been finite for too many steps in a row."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW in two forms. `bert`: the original's, without bias correction. `adamw`: Loshchilov & Hutter 2019."""

    name: Literal["bert", "adamw"] = "bert"
    peak_lr: float = 1e-4
    schedule: Literal["bert", "linear", "cosine"] = "bert"
    """After the warm-up: `bert` falls linearly as counted from step 0 (the original's formula), `linear` and
    `cosine` from the warm-up's end."""
    warmup: int = 10_000
    """Steps in which the learning rate rises."""
    warmup_fraction: float = 0.0
    """Instead of warmup: this share of all steps."""
    final_lr: float = 0.0
    """What `linear` and `cosine` end at, as a share of peak-lr."""
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    no_decay: tuple[str, ...] = ("norm", "bias")
    """Parameters whose path holds one of these words are not decayed."""
    frozen: tuple[str, ...] = ()
    """Parameters whose path holds one of these words are not trained: `backbone` trains the heads alone."""
    frozen_layers: int = 0
    """The embeddings and this many of the lowest layers are not trained."""
    layer_decay: float = 1.0
    """Each layer's learning rate as a share of that of the layer above it; heads and pooler have the full rate."""
    clip: float = 1.0
    """Longest gradient, as a global norm; 0: no clipping."""
    accumulate: int = 1
    """Parts that a batch is worked through in, one after the other; the step is the same."""
    max_skipped: int = 10
    """Steps in a row whose loss or gradient may be other than finite before the run stops."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("peak_lr", 0.0, math.inf),
            ("final_lr", 0.0, 1.0),
            ("b1", 0.0, 1.0),
            ("b2", 0.0, 1.0),
            ("eps", 0.0, math.inf),
            ("weight_decay", 0.0, math.inf),
            ("clip", 0.0, math.inf),
            ("warmup_fraction", 0.0, 1.0),
            ("layer_decay", 0.0, 1.0),
        ):
            value = getattr(self, name)
            may_be_low = name not in ("peak_lr", "eps", "layer_decay")
            may_be_high = name in ("final_lr", "layer_decay")
            if not (low < value < high or (may_be_low and value == low) or (may_be_high and value == high)):
                wanted = f"{'at least' if may_be_low else 'above'} {low:g}"
                limit = f" and {'at most' if may_be_high else 'below'} {high:g}"
                raise ValueError(f"optim.{name.replace('_', '-')}={value} is not {wanted}{limit}")
        if self.warmup < 0 or self.frozen_layers < 0 or self.accumulate < 1 or self.max_skipped < 1:
            raise ValueError(
                "optim.warmup and optim.frozen-layers must be at least 0, "
                "optim.accumulate and optim.max-skipped at least 1"
            )
        if self.schedule == "bert" and self.final_lr:
            raise ValueError(
                f"optim.final-lr={self.final_lr} contradicts optim.schedule=bert, which ends at 0; "
                "give --optim.schedule linear or cosine"
            )


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How the devices are laid out: data × fsdp × tensor."""

    data: int = 0
    """Copies of the model that each take a share of the batch; 0: as many as the devices allow."""
    fsdp: int = 1
    """Parts that parameters and optimizer are cut into along the hidden width, each with a share of the batch."""
    tensor: int = 1
    """Parts that heads, feed-forward width and vocabulary are cut into."""
    distributed: bool = False
    """Several processes, found by jax.distributed: on a TPU pod or under SLURM, MPI or Kubernetes by itself,
    else by JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."""

    def __post_init__(self) -> None:
        if self.data < 0 or self.fsdp < 1 or self.tensor < 1:
            raise ValueError("mesh.data must be at least 0 (0: what is left), mesh.fsdp and mesh.tensor at least 1")


@dataclass(frozen=True, kw_only=True)
class SaveConfig:
    """Checkpoints. The last one, and the best by held-out loss, are always kept."""

    every: int = 1000
    """Steps between checkpoints."""
    latest: int = 2
    """How many of the newest are kept."""
    keep_every: int = 0
    """Keep each checkpoint whose step is a multiple of this, for ever; 0: none."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.latest < 1 or self.keep_every < 0:
            raise ValueError("save.every and save.latest must be at least 1, save.keep-every at least 0")
        if self.keep_every % self.every:
            raise ValueError(f"save.keep-every={self.keep_every} is not a multiple of save.every={self.every}")


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """What a run tells of itself. Every step is in metrics.jsonl whatever is set here."""

    every: int = 10
    """Steps whose figures are fetched from the device together."""
    tensorboard: bool = True

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"log.every={self.every} is not a positive number of steps")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Held-out figures while training, where there is held-out text."""

    every: int = 0
    """Steps between evaluations; 0: at the end, and after each pass where a run is counted in epochs."""
    batch: int = 0
    """Lines at a time; 0: as in training."""
    metric: str = "loss"
    """The figure that the best checkpoint is known by: a loss or an error, or one that is better when larger."""
    patience: int = 0
    """Evaluations in a row without a better figure after which the run stops; each is saved then. 0: never."""

    def __post_init__(self) -> None:
        if self.every < 0 or self.batch < 0 or self.patience < 0:
            raise ValueError("evaluate.every, evaluate.batch and evaluate.patience must be at least 0")


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    """What a run begins with, where not with chance: the parameters of another run."""

    run: str = ""
    """The folder of the run to begin from; its vocabulary comes along. Empty: everything is drawn."""
    step: int = 0
    """Its checkpoint; 0: the newest good one."""
    scratch: bool = False
    """Its model and vocabulary, but none of its parameters: what a pretraining is compared with."""
    grow: bool = False
    """Tables (vocabulary, positions, segments) may be larger than its own; the new rows are drawn."""
    drop_heads: bool = False
    """Draw all heads, also one that would fit."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run."""

    model: ModelConfig = field(default_factory=BertConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    save: SaveConfig = field(default_factory=SaveConfig)
    log: LogConfig = field(default_factory=LogConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    init: InitConfig = field(default_factory=InitConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    objective: Literal["mlm_nsp", "classify", "regress", "tag"] = "mlm_nsp"
    dir: str = ""
    """The run's folder; the same command in the same folder goes on."""
    steps: int = 1_000_000
    """Updates in all; 0: as many as epochs wants."""
    epochs: float = 0.0
    """Passes over the examples, where steps is 0."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 0 or not 0.0 <= self.epochs < math.inf or not (self.steps or self.epochs):
            raise ValueError(f"steps={self.steps} and epochs={self.epochs} do not say how long; give one of them")
        if self.task.kind != "off" and self.objective != self.task.kind:
            named = f"task.name={self.task.name}" if self.task.name != "off" else f"objective={self.objective}"
            raise ValueError(f"{named} does not fit task.kind={self.task.kind}; give one of them")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed={self.seed} is not in [0, 2^31)")
        if self.data.length > self.model.length:
            raise ValueError(
                f"data.length={self.data.length} exceeds model.length={self.model.length}; "
                "lower data.length or raise model.length"
            )
        if self.data.batch % self.optim.accumulate:
            raise ValueError(
                f"data.batch={self.data.batch} is not a multiple of optim.accumulate={self.optim.accumulate}"
            )
        if self.steps and not self.optim.warmup_fraction and self.optim.warmup >= self.steps:
            raise ValueError(
                f"optim.warmup={self.optim.warmup} leaves nothing of steps={self.steps}; lower --optim.warmup"
            )


FAMILIES: dict[str, type] = {"bert": BertConfig}
"""run.json's word for a model's class."""

_MAY_CHANGE = (
    *("mesh", "save", "log", "evaluate", "steps", "epochs", "dir", "data.path", "data.dev", "data.tokenizer"),
    *("init.run", "task.train", "task.dev", "task.test"),
)


def may_change(name: str) -> bool:
    """Whether a field may differ when a run goes on. Where text and vocabulary lie may: that they are the same is seen
    from their fingerprints. All else is the run itself."""
    return name in _MAY_CHANGE or name.split(".")[0] in _MAY_CHANGE


def to_json(run: Run) -> dict[str, Any]:
    """The tree as plain JSON, the model's family named."""
    tree = dataclasses.asdict(run)
    family = next(name for name, kind in FAMILIES.items() if type(run.model) is kind)
    return {**tree, "model": {"family": family, **tree["model"]}}


def from_json(tree: dict[str, Any], where: str) -> Run:
    """The typed tree again. Raises ConfigError naming the field that is unknown or of the wrong kind."""
    model = tree.get("model") if isinstance(tree, dict) else None
    if not isinstance(model, dict):
        raise ConfigError(f"{where}: the configuration is not an object with a model, but {str(tree)[:60]!r}")
    tree, model = dict(tree), dict(model)
    family = model.pop("family", None)
    if not isinstance(family, str) or family not in FAMILIES:
        raise ConfigError(f"{where}: model.family is {family!r}, not one of {', '.join(FAMILIES)}")
    tree["model"] = model
    try:
        return _build(Run, tree, where, {"model": FAMILIES[family]})
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None


def resolved(run: Run) -> Run:
    """The same run with its files named from the root, so that its folder can be opened from anywhere."""

    def absolute(section: Any, *names: str) -> Any:
        found: dict[str, Any] = {}
        for name in names:
            value = getattr(section, name)
            found[name] = _absolute(value) if isinstance(value, str) else tuple(map(_absolute, value))
        return dataclasses.replace(section, **found)

    data, task = absolute(run.data, "path", "dev", "tokenizer"), absolute(run.task, "train", "dev", "test")
    return dataclasses.replace(run, data=data, task=task, init=absolute(run.init, "run"))


def _absolute(path: str) -> str:
    return os.path.abspath(path) if path and not path.startswith("tfds:") else path


def scheduled(run: Run, lines_per_pass: int) -> Run:
    """The same run with its length told in steps: `epochs` passes, `warmup_fraction` of them, an evaluation a pass.

    As the original counts: steps = int(lines / batch · epochs), warm-up = int(steps · fraction); at least one step.
    """
    steps = run.steps or max(int(lines_per_pass / run.data.batch * run.epochs), 1)
    warmup = int(steps * run.optim.warmup_fraction) if run.optim.warmup_fraction else min(run.optim.warmup, steps - 1)
    every = run.evaluate.every or (-(-lines_per_pass // run.data.batch) if run.epochs else 0)
    return dataclasses.replace(
        run,
        steps=steps,
        epochs=0.0,
        optim=dataclasses.replace(run.optim, warmup=warmup, warmup_fraction=0.0),
        evaluate=dataclasses.replace(run.evaluate, every=every),
    )


def identity(run: Run, tokenizer: str, data: str) -> str:
    """One word for all that makes a run's numbers: its fixed fields and the fingerprints of tokenizer and data.

    Fields left at their default are not counted, so that a field added later changes no run that was begun before.
    """
    usual = fields(Run(model=type(run.model)()))
    fixed = {name: value for name, value in fields(run).items() if not may_change(name) and value != usual[name]}
    fixed["model.family"] = next(name for name, kind in FAMILIES.items() if type(run.model) is kind)
    return hashlib.sha256(json.dumps([fixed, tokenizer, data], sort_keys=True, default=list).encode()).hexdigest()


def _build(kind: type, tree: Any, where: str, override: dict[str, type] | None = None) -> Any:
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: {kind.__name__} wants an object, not {tree!r}")
    hints = {**typing.get_type_hints(kind), **(override or {})}
    names = {f.name for f in dataclasses.fields(kind)}
    for name in tree:
        if name not in names:
            raise ConfigError(f"{where}: {kind.__name__} has no field {name!r}{did_you_mean(name, names)}")
    return kind(**{name: _value(hints[name], value, f"{where}: {name}") for name, value in tree.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, where)
    origin = typing.get_origin(hint)
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise ConfigError(f"{where} is {value!r}, not one of {', '.join(map(str, typing.get_args(hint)))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} is {value!r}, not a list")
        return tuple(_value(typing.get_args(hint)[0], v, where) for v in value)
    if origin in (typing.Union, types.UnionType):
        raise ConfigError(f"{where} is of no kind that a file can hold")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{where} is {value!r}, not of kind {hint.__name__}")
    return value


def fields(kind: Any, prefix: str = "") -> dict[str, Any]:
    """Every field of a config by its dotted name: {"optim.peak_lr": 1e-4, …}."""
    flat: dict[str, Any] = {}
    for f in dataclasses.fields(kind):
        value = getattr(kind, f.name)
        if dataclasses.is_dataclass(value):
            flat |= fields(value, f"{prefix}{f.name}.")
        else:
            flat[prefix + f.name] = value
    return flat


def difference(run: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """The fields in which two runs differ: name → (run's value, other's value)."""
    mine, others = fields(run), fields(other)
    return {k: (mine.get(k), others.get(k)) for k in mine | others if mine.get(k) != others.get(k)}


def write_json(path: Path, tree: Any) -> None:
    """Write, then rename: the file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(tree, file, indent=1, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def read(directory: Path) -> tuple[Run, dict[str, Any]]:
    """The run of a folder, and all that its run.json says. Raises ConfigError where it is not a run's folder."""
    path = directory / "run.json"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{directory} is not a run: it holds no run.json; give the --dir of a pretraining") from None
    except NotADirectoryError:
        raise ConfigError(f"{directory} is not a run but a file; give the --dir of a pretraining") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        got = tree.get("format") if isinstance(tree, dict) else None
        raise ConfigError(f"{path} has format {got!r}; this version reads format {FORMAT}")
    return from_json(tree.get("config") or {}, str(path)), tree
