"""A run, whole: every choice that makes it what it is, in one frozen tree. Needs no jax.

`run.json` is this tree written down; `train.run_file` reads it.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from contexture.data.config import DataConfig, TaskConfig
from contexture.models.config import LARGEST, BertConfig, ElmoConfig, GptConfig, HeadConfig, ModelConfig
from contexture.train.options import EvaluateConfig, InitConfig, LogConfig, MeshConfig, OptimConfig, SaveConfig


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
    head: HeadConfig = field(default_factory=HeadConfig)
    objective: Literal["mlm_nsp", "lm", "bilm", "classify", "regress", "tag", "choice", "span"] = "mlm_nsp"
    dir: str = ""
    """The run's folder; the same command in the same folder goes on."""
    steps: int = 1_000_000
    """Updates in all; 0: as many as epochs wants."""
    epochs: float = 0.0
    """Passes over the examples, where steps is 0."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in fields(self).items():
            if type(value) is int and abs(value) > LARGEST:
                raise ValueError(
                    f"{name.replace('_', '-')}={value:.3g} is not within {LARGEST:,}; give a smaller number"
                    if abs(value) < 10**300
                    else f"{name.replace('_', '-')} has too many digits"
                )
        if self.steps < 0 or not 0.0 <= self.epochs < math.inf or not (self.steps or self.epochs):
            raise ValueError(f"steps={self.steps} and epochs={self.epochs} do not say how long; give one of them")
        if self.task.kind != "off" and self.objective != self.task.kind:
            named = f"task.name={self.task.name}" if self.task.name != "off" else f"objective={self.objective}"
            raise ValueError(f"{named} does not fit task.kind={self.task.kind}; give one of them")
        family = next(name for name, kind in FAMILIES.items() if type(self.model) is kind)
        streams = {"mlm_nsp": ("bert", "sentence_pairs"), "lm": ("gpt", "windows"), "bilm": ("elmo", "lanes")}
        wanted = streams.get(self.objective)
        if wanted and (family, self.data.stream) != wanted:
            raise ValueError(
                f"objective={self.objective} wants a model of the family {wanted[0]} and data.stream={wanted[1]}, "
                f"not {family} and {self.data.stream}"
            )
        if self.data.layout != family:
            raise ValueError(f"data.layout={self.data.layout} does not fit a model of the family {family}")
        if family != "gpt" and (self.task.lm_weight or self.task.symmetric):
            name = "lm-weight" if self.task.lm_weight else "symmetric"
            raise ValueError(f"task.{name} is for GPT, and the model is of the family {family}; leave it out")
        self._check_head(family)
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed={self.seed} is not in [0, 2^31)")
        if not isinstance(self.model, ElmoConfig) and self.data.length > self.model.length:
            raise ValueError(
                f"data.length={self.data.length} exceeds model.length={self.model.length}; "
                "lower data.length or raise model.length"
            )
        if self.data.lines(0) % self.optim.accumulate:
            name = "ramp-from" if self.data.ramp_from else "batch"
            raise ValueError(
                f"data.{name}={self.data.lines(0)} is not a multiple of optim.accumulate={self.optim.accumulate}"
            )
        if self.data.ramp_from and not self.steps:
            raise ValueError("data.ramp-from wants --steps, since a pass has no fixed number of them; leave epochs out")

    def _check_head(self, family: str) -> None:
        head, kind = self.head, self.task.kind
        if head.mix != "off" and (kind not in ("classify", "regress", "tag") or self.task.symmetric):
            what = "task.symmetric" if self.task.symmetric else f"task.kind={kind}"
            raise ValueError(f"head.mix={head.mix} has no meaning for {what}; leave it out")
        if head.crf and (family != "elmo" or kind != "tag" or self.task.class_weights):
            raise ValueError(
                "head.crf scores the tags of an ELMo's task.kind=tag, all alike; leave it or task.class-weights out"
            )
        if head.pair and family != "elmo":
            raise ValueError("head.pair is known from the examples; leave it out")
        if isinstance(self.model, ElmoConfig) and kind != "off":
            if head.mix == "off":
                raise ValueError(f"head.mix=off gives an ELMo's task.kind={kind} nothing; give --head.mix all")
            if self.model.stateful:
                raise ValueError("model.stateful has no meaning for a task, whose examples do not follow each other")


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


FAMILIES: dict[str, type] = {"bert": BertConfig, "gpt": GptConfig, "elmo": ElmoConfig}
"""run.json's word for a model's class."""
