"""The whole configuration of a run in one frozen tree. Needs no jax.

`run.json` is this tree written down; `train.settings.run_file` reads it.
"""

import dataclasses
import math
from dataclasses import dataclass, field

from contexture.data.config import DataConfig, Family, Stream, TaskConfig
from contexture.data.families.base import TextFamily, check_pair_length
from contexture.models.config import MAX_SIZE, BertConfig, HeadConfig, ModelConfig
from contexture.train.errors import ConfigError
from contexture.train.families import FAMILIES, text_family
from contexture.train.settings.sections import (
    EvaluateConfig,
    InitConfig,
    LogConfig,
    MeshConfig,
    OptimConfig,
    SaveConfig,
)


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
    dir: str = ""
    """The run's folder; the same command in the same folder resumes."""
    steps: int = 1_000_000
    """How many steps to train in all; 0 is as many as epochs wants."""
    epochs: float = 0.0
    """Passes over the examples, where steps is 0."""
    seed: int = 0
    """The seed of all random numbers: the same seed gives the same run."""

    def __post_init__(self) -> None:
        # Each section has checked its own fields; here are the checks that need several sections.
        for name, value in fields(self).items():
            if type(value) is int and abs(value) > MAX_SIZE:
                raise ValueError(
                    f"{name.replace('_', '-')}={value:.3g} is not within {MAX_SIZE:,}; give a smaller number"
                    if abs(value) < 10**300
                    else f"{name.replace('_', '-')} has too many digits"
                )
        if self.steps < 0 or not 0.0 <= self.epochs < math.inf or not (self.steps or self.epochs):
            raise ValueError(f"steps={self.steps} and epochs={self.epochs} do not say how long; give one of them")
        # Options of one family or one kind of task are refused for others, where they would silently do nothing.
        self._check_data()
        # The LM loss and the two orders of a pair are GPT-1's, and need its causal model.
        if not self.text.is_causal and (self.task.lm_weight or self.task.symmetric):
            name = "lm-weight" if self.task.lm_weight else "symmetric"
            raise ValueError(
                f"task.{name} is for GPT and other causal models, and this one is of the family {self.family}; "
                "leave it out"
            )
        self._check_head()
        self._check_redrawn()
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed={self.seed} is not in [0, 2^31)")
        if (longest := max(phase.length for phase in self.data.stretches)) > self.model.length:
            raise ValueError(
                f"data.length={longest} exceeds model.length={self.model.length}; "
                "lower data.length or raise model.length"
            )
        # The smallest batch of the run, or of each phase: a ramp only doubles it.
        for phase in self.data.stretches:
            first, name = self.data.batch_size_at(phase.first), "batch"
            if self.data.ramp_from or self.data.phases:
                name = "ramp-from" if self.data.ramp_from else "phases: a batch"
            if first % self.optim.accumulate:
                raise ValueError(f"data.{name}={first} is not a multiple of optim.accumulate={self.optim.accumulate}")
        # The step of the last share must be known before the text is.
        if ":" in self.data.masked_fraction and not (self.steps or self.data.masked_steps):
            raise ValueError("data.masked-fraction from one share to another wants --steps; leave epochs out")
        if self.optim.phase_lr and not self.data.phases:
            raise ValueError("optim.phase-lr has no meaning without phases; give data.phases too, or optim.peak-lr")
        if self.optim.phase_lr and len(self.optim.phase_lr) != len(self.data.phases):
            raise ValueError(
                f"optim.phase-lr has {len(self.optim.phase_lr)} rates, and data.phases {len(self.data.phases)} phases; "
                "give one for each"
            )
        # Epochs become steps by one size of batch.
        if self.data.phases and not self.steps:
            raise ValueError("data.phases wants --steps, since steps in an epoch vary; leave epochs out")
        if self.data.phases and self.steps <= self.data.stretches[-1].first:
            raise ValueError(
                f"steps={self.steps} ends before the last of data.phases begins, at step "
                f"{self.data.stretches[-1].first}; give more --steps, or fewer phases"
            )
        if self.data.ramp_from and not self.steps:
            raise ValueError("data.ramp-from wants --steps, since steps in an epoch vary; leave epochs out")

    @property
    def family(self) -> Family:
        """The name of the model's family: bert, gpt, elmo or vectors."""
        return self.model.family  # pyright: ignore[reportReturnType]

    @property
    def text(self) -> TextFamily:
        """How the model's family reads text."""
        return text_family(self.model)

    def in_phase(self, step: int) -> "Run":
        """Returns the run with the length and the batch of the phase that a step is in, and no other phase."""
        if not self.data.phases:
            return self
        # Rates of phases have no meaning where there is one.
        optim = dataclasses.replace(self.optim, phase_lr=(), phase_warmup=())
        return dataclasses.replace(self, data=self.data.at(step), optim=optim)

    @property
    def objective(self) -> str:
        """The name of the objective: the family's pretraining objective, or the kind of task."""
        return self.task.kind if self.task.kind != "off" else FAMILIES[self.family].objective

    @property
    def stream(self) -> Stream:
        """How pretraining draws sequences from text. Raises ConfigError for static vectors."""
        if self.text.stream is None:
            raise ConfigError(
                "static vectors are imported from a file and not pretrained; train them for a task: contexture finetune"
            )
        return self.text.stream

    @property
    def reads_features(self) -> bool:
        """Whether its steps may read stored outputs of the backbone as batch fields: in a task with a frozen backbone,
        unless a loss over the vocabulary reads the backbone's own table."""
        return self.task.kind != "off" and self.optim.freezes_backbone and not self.task.lm_weight

    @property
    def shares_rows(self) -> bool:
        """Whether a row of a batch holds several texts, which see each other nowhere."""
        return self.data.packed if self.task.kind == "off" else True

    def _check_data(self) -> None:
        # Options of `data` that only some pretrainings or kinds of task read.
        data, unused = self.data, ("documents", "packed")
        if self.task.kind == "off":
            for phase in data.stretches:
                self.text.check_pretraining(data.at(phase.first))
            # A family may read some of these options in pretraining.
            unused = tuple(name for name in unused if name not in self.text.pretraining_options)
            if self.text.continues_rows:
                unused += ("ramp_from", "ramp_steps", "phases")
        else:
            unused += ("phases",)
            check_pair_length(data)
        if self.task.kind != "tag":
            unused += ("context",)
        # An unused option may be in a recipe at its default; any other value is a mistake of the user's.
        default = DataConfig()
        for name in unused:
            if getattr(data, name) != getattr(default, name):
                raise ValueError(f"data.{name.replace('_', '-')} has no meaning for {self._what()}; leave it out")

    def _what(self) -> str:
        # The subject of an error: the kind of task, or the pretraining of a family.
        if self.task.kind != "off":
            return f"task.kind={self.task.kind}"
        return f"pretraining {self.text.called}" if self.text.stream else self.text.called

    def _check_head(self) -> None:
        # Which heads a kind of task and a family can have.
        head, kind, reads_words = self.head, self.task.kind, self.text.reads_words
        if head.mix != "off" and (kind == "off" or self.task.symmetric):
            what = "task.symmetric" if self.task.symmetric else f"task.kind={kind}"
            raise ValueError(f"head.mix={head.mix} has no meaning for {what}; leave it out")
        if head.fewest_layers > self.model.layers:
            raise ValueError(
                f"head.mix={head.mix} reads {head.fewest_layers} layers, and the model has {self.model.layers}; "
                "give another choice, such as --head.mix all"
            )
        # A CRF scores a chain of one label a word. A BERT's and a GPT's words have several tokens.
        if head.crf and (not reads_words or kind != "tag" or self.task.class_weights):
            raise ValueError(
                "head.crf scores the tags of an ELMo's or static vectors' task.kind=tag, all alike; leave it or "
                "task.class-weights out"
            )
        if head.pair and not reads_words:
            raise ValueError("head.pair is known from the examples; leave it out")
        if reads_words and kind != "off":
            # Heads of models that read words get their input from a mix of layers alone.
            if head.mix == "off":
                usual = f"give --head.mix {FAMILIES[self.family].mix}"
                raise ValueError(f"head.mix=off gives {self.text.possessive} task.kind={kind} nothing; {usual}")
            # A state that is carried from batch to batch would join examples that have nothing to do with each other.
            if self.model.stateful:
                raise ValueError("model.stateful has no meaning for a task, whose examples do not follow each other")

    def _check_redrawn(self) -> None:
        count, optim = self.init.redraw_layers, self.optim
        if not count:
            return
        if not self.init.run:
            raise ValueError("init.redraw-layers has no meaning without init.run, whose layers it draws; leave it out")
        if count > self.model.layers:
            raise ValueError(f"init.redraw-layers={count} is more than the model's {self.model.layers} layers")
        # A layer that is drawn and never trained only adds noise to the layers above it.
        kept = "lora-rank" if optim.lora_rank else "frozen=backbone" if "backbone" in optim.frozen else ""
        if optim.frozen_layers > self.model.layers - count:
            kept = f"frozen-layers={optim.frozen_layers}"
        # The message says that an ELMo's backbone is frozen by default, which its user may not know.
        if kept:
            usual = f"{self.text.possessive} backbone is frozen unless --optim.frozen says something else, as `bias`"
            note = f" ({usual})" if FAMILIES[self.family].frozen else ""
            raise ValueError(
                f"init.redraw-layers={count} draws layers that optim.{kept} does not train; leave one out{note}"
            )


def fields(kind: object, prefix: str = "") -> dict[str, object]:
    """Returns every field of a config by its dotted name: {"optim.peak_lr": 1e-4, …}."""
    flat: dict[str, object] = {}
    assert dataclasses.is_dataclass(kind)
    for f in dataclasses.fields(kind):
        value = getattr(kind, f.name)
        # Sections are nested dataclasses; everything else is a value.
        if dataclasses.is_dataclass(value):
            flat |= fields(value, f"{prefix}{f.name}.")
        else:
            flat[prefix + f.name] = value
    return flat
