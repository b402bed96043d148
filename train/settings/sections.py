"""The sections of a run other than model, data and task: optimizer, mesh, saving, logging, evaluation, initialisation.

Plain dataclasses: importing this costs nothing and needs no jax.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal

BASE_WIDTH, _HIGHEST = 768, 1e-3
"""Hidden units of the models that the papers fine-tune; maximum learning rate for a smaller model."""


def rate_at_width(peak_lr: float, width: int) -> float:
    """Returns the learning rate of a fine-tuning for a model of `width` hidden units, from the papers' for 768.

    It grows as 768 / width, up to 1e-3, and is the papers' for wider models. Adam's update of an entry is about as
    large as the rate, whatever the width; a product with a kernel sums `width` of them (Yang et al. 2022, table 3).
    The authors of small BERTs fine-tune with up to 3e-4, six times 5e-5, at 128 units (Turc et al. 2019).
    Differs: they choose among four rates by each task's held-out examples.
    """
    # Three digits, so that the rate in run.json and on the command line is the one that is used.
    return max(peak_lr, min(float(f"{peak_lr * BASE_WIDTH / width:.3g}"), _HIGHEST))


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW in three forms, LAMB, Adafactor and Adagrad. `adamw`: Loshchilov & Hutter 2019. `bert`: the original's,
    without bias correction. `gpt1`: the original's, whose bias correction falls on the decay too and not on eps.
    `adagrad`: ELMo's, its sums of squares starting at 1, without eps (Duchi et al. 2011)."""

    name: Literal["bert", "adamw", "gpt1", "lamb", "adafactor", "adagrad"] = "bert"
    """The optimizer. adamw: AdamW. lamb: AdamW whose update is scaled, layer by layer, to the length of the parameters,
    for large batches (You et al. 2020). adafactor: sums of rows and columns in place of Adam's two moments, with
    updates scaled to the parameters, so that rates are about 0.01 (Shazeer and Stern 2018). bert: without bias
    correction, as BERT's original. gpt1: as GPT-1's original, whose bias correction falls on the decay too and not on
    eps. adagrad: ELMo's."""
    peak_lr: float = 1e-4
    """The peak learning rate, which the warm-up rises to."""
    schedule: Literal["bert", "linear", "cosine", "gpt1"] = "bert"
    """How the learning rate falls after the warm-up. bert: linearly, as counted from step 0 (the original's formula).
    linear, cosine: from the warm-up's end. gpt1: linearly from step 0 on, the warm-up included."""
    warmup: int = 10_000
    """Steps in which the learning rate rises. As many as all steps or more: a tenth of them instead, with a warning."""
    phase_lr: tuple[float, ...] = ()
    """The peak learning rate of each of data.phases, whose schedule then begins anew, warm-up included. Without it one
    schedule runs through all phases."""
    phase_warmup: tuple[int, ...] = ()
    """The warm-up steps of each of data.phases, with optim.phase-lr; without it, as optim.warmup says."""
    warmup_fraction: float = 0.0
    """The share of all steps in which the learning rate rises. It takes the place of optim.warmup."""
    final_lr: float = 0.0
    """The rate that the schedules linear and cosine end at, as a fraction of optim.peak-lr."""
    decay_steps: int = 0
    """The step at which the schedules linear and cosine end; 0 is the last."""
    b1: float = 0.9
    """The decay of Adam's first moment, the mean of gradients."""
    b2: float = 0.999
    """The decay of Adam's second moment, the mean of their squares."""
    eps: float = 1e-6
    """The epsilon that is added to the root of the second moment."""
    weight_decay: float = 0.01
    """The weight decay, as a share of the learning rate."""
    no_decay: tuple[str, ...] = ("norm", "bias")
    """Words in the paths of parameters that are not decayed."""
    frozen: tuple[str, ...] = ()
    """Words in the paths of parameters that are not trained; `backbone` trains the heads alone."""
    frozen_layers: int = 0
    """How many of the lowest layers are not trained, nor the embeddings below them."""
    layer_decay: float = 1.0
    """The learning rate of each layer as a share of that of the layer above it; heads and pooler have the full rate."""
    mix_lr: float = 0.0
    """The peak learning rate of the weights that mix layers (--head.mix all or last-four); 0 is optim.peak-lr."""
    lora_rank: int = 0
    """The rank of adapters that are trained instead of the backbone, beside the heads (LoRA); 0 is no adapters."""
    lora_alpha: float = 8.0
    """What scales the product of an adapter, divided by optim.lora-rank."""
    lora_targets: tuple[str, ...] = ()
    """Which kernels have adapters, by words of their paths: query value, attention, ffn, or all. Without any, query and
    value; of an ELMo, all kernels of its LSTMs."""
    clip: float = 1.0
    """The largest global norm of the gradient; 0 is no clipping."""
    gradient_scale: float = 1.0
    """What adagrad multiplies the gradient with before clipping; ELMo's original takes the length of a sequence."""
    moments: Literal["float32", "bfloat16"] = "float32"
    """The dtype in which Adam's moments are stored; bfloat16 halves their memory. An update is computed in float32."""
    stochastic_rounding: bool = True
    """Round moments in bfloat16 up or down by chance, so that small updates add up; without it, to the nearest."""
    accumulate: int = 1
    """How many parts a batch is worked through in, one after the other; the step is the same. An ELMo's distinct words
    are those of the whole batch, and are read anew in each part."""
    max_skipped: int = 10
    """How many steps in a row may have a loss or gradient that is not finite before the run stops."""

    def __post_init__(self) -> None:
        # Errors give the value, the bounds and the way out; names are written as on the command line.
        if self.moments == "bfloat16" and self.name in ("adagrad", "adafactor"):
            raise ValueError(f"optim.moments=bfloat16 is for Adam; {self.name}'s sums of squares want float32")
        if not all(0.0 < rate < math.inf for rate in self.phase_lr) or any(steps < 0 for steps in self.phase_warmup):
            raise ValueError("optim.phase-lr and optim.phase-warmup are rates above 0 and steps from 0 on")
        if self.phase_warmup and len(self.phase_warmup) != len(self.phase_lr):
            raise ValueError(
                "optim.phase-warmup has no meaning without as many optim.phase-lr; give both for each phase"
            )
        # Field, lower and upper bound. Which bounds may be reached: 0 is `off` for most, and 1 a share of everything.
        for name, low, high in (
            ("peak_lr", 0.0, math.inf),
            ("final_lr", 0.0, 1.0),
            ("b1", 0.0, 1.0),
            ("b2", 0.0, 1.0),
            ("eps", 0.0, math.inf),
            ("weight_decay", 0.0, math.inf),
            ("mix_lr", 0.0, math.inf),
            ("lora_alpha", 0.0, math.inf),
            ("clip", 0.0, math.inf),
            ("gradient_scale", 0.0, math.inf),
            ("warmup_fraction", 0.0, 1.0),
            ("layer_decay", 0.0, 1.0),
        ):
            # `low < value < high`, and either end where it makes sense: a rate of 0 trains nothing, a decay of 0 is
            # none.
            value = getattr(self, name)
            may_be_low = name not in ("peak_lr", "eps", "layer_decay", "gradient_scale", "lora_alpha")
            may_be_high = name in ("final_lr", "layer_decay")
            if not (low < value < high or (may_be_low and value == low) or (may_be_high and value == high)):
                bounds = f"{'at least' if may_be_low else 'above'} {low:g}"
                bounds += f" and {'at most' if may_be_high else 'below'} {high:g}"
                raise ValueError(f"optim.{name.replace('_', '-')}={value} is not {bounds}")
        # A frozen backbone has no rates, so rates of its layers would silently do nothing.
        if "backbone" in self.frozen and (self.layer_decay != 1.0 or self.frozen_layers):
            name = "frozen-layers" if self.frozen_layers else "layer-decay"
            raise ValueError(
                f"optim.{name} has no meaning where optim.frozen=backbone keeps every layer as it is; leave one out "
                "(an ELMo's is frozen unless --optim.frozen says something else, as `bias`)"
            )
        for name in ("warmup", "frozen_layers", "decay_steps", "accumulate", "max_skipped", "lora_rank"):
            # Counts: these two are at least 1, for the others 0 is off.
            low = int(name in ("accumulate", "max_skipped"))
            if getattr(self, name) < low:
                raise ValueError(f"optim.{name.replace('_', '-')}={getattr(self, name)} is not at least {low}")
        self._check_lora()
        # The two original schedules have no end of their own to choose.
        for name in ("final_lr", "decay_steps"):
            if self.schedule in ("bert", "gpt1") and getattr(self, name):
                raise ValueError(
                    f"optim.{name.replace('_', '-')}={getattr(self, name)} contradicts optim.schedule={self.schedule}, "
                    "which ends at 0 with the last step; give --optim.schedule linear or cosine"
                )

    @property
    def freezes_backbone(self) -> bool:
        """Whether the whole backbone is frozen, so that its outputs never change."""
        # Adapters change what the backbone computes, though its own parameters are frozen.
        return "backbone" in self.frozen and not self.lora_rank

    @property
    def lora_scale(self) -> float:
        """The factor of an adapter's product, alpha / rank."""
        return self.lora_alpha / self.lora_rank

    def _check_lora(self) -> None:
        # Alpha has a default, so only targets show that adapters were meant.
        if not self.lora_rank:
            if self.lora_targets:
                raise ValueError("optim.lora-targets has no meaning without adapters; give --optim.lora-rank 8 too")
            return
        # An ELMo's fine-tuning freezes its backbone, which adapters do too.
        if self.frozen not in ((), ("backbone",)) or self.frozen_layers or self.layer_decay != 1.0:
            other = self.frozen not in ((), ("backbone",))
            name = "frozen" if other else "frozen-layers" if self.frozen_layers else "layer-decay"
            raise ValueError(
                f"optim.{name} contradicts optim.lora-rank={self.lora_rank}, which freezes the whole backbone and "
                "trains adapters and heads; leave one out"
            )


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How the devices are laid out: data × fsdp × context × tensor."""

    data: int = 0
    """How many copies of the model share the batch; 0 is as many as the devices allow."""
    fsdp: int = 1
    """How many parts parameters and optimizer are cut into along the hidden width, each with a share of the batch."""
    context: int = 1
    """How many parts sequences are cut into, for long ones. Attention reads the keys of all parts."""
    tensor: int = 1
    """How many parts heads, feed-forward width and vocabulary are cut into."""
    dcn_data: int = 0
    """How many groups of devices a slower network joins: the copies of the model are dealt over them, and all else
    stays within one. 0 is the slices of a TPU job."""
    compiler_options: tuple[str, ...] = ()
    """Options of XLA. They are added to those that are set for the device, or replace them."""
    distributed: bool = False
    """Train in several processes, found by jax.distributed. On a TPU pod or under SLURM, MPI or Kubernetes by itself,
    else by JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."""
    startup_minutes: float = 5.0
    """How long the processes wait for each other when they start."""
    peer_minutes: float = 2.0
    """How long a process may give no sign of life before the others end."""
    stall_minutes: float = 60.0
    """How long a training may go on without a step, a batch of an evaluation or a save that ends, before its process
    ends with code 1; 0 is for ever."""

    def __post_init__(self) -> None:
        # Below three seconds heartbeats would be missed by chance; beyond a day nobody waits.
        for name in ("startup_minutes", "peer_minutes"):
            if not 0.05 <= getattr(self, name) <= 1440:
                raise ValueError(f"mesh.{name.replace('_', '-')}={getattr(self, name)} is not in 0.05 to 1440 minutes")
        if self.stall_minutes and not 0.05 <= self.stall_minutes <= 1440:
            raise ValueError(f"mesh.stall-minutes={self.stall_minutes} is neither 0 nor in 0.05 to 1440 minutes")
        # Only the form is checked here; XLA checks names and values when the mesh is known (train.mesh).
        for option in self.compiler_options:
            if not re.fullmatch(r"\w+=.+", option):
                raise ValueError(f"mesh.compiler-options={option!r} is not name=value")
        # Whether the product fits the devices is known only where they are (train.mesh.build).
        if self.data < 0 or self.fsdp < 1 or self.tensor < 1:
            raise ValueError("mesh.data must be at least 0 (0: what is left), mesh.fsdp and mesh.tensor at least 1")
        if self.context < 1:
            raise ValueError(f"mesh.context={self.context} is not at least 1 (1: sequences are whole)")
        if self.dcn_data < 0:
            raise ValueError(f"mesh.dcn-data={self.dcn_data} is not at least 0 (0: the slices that there are)")


@dataclass(frozen=True, kw_only=True)
class SaveConfig:
    """Checkpoints. The last one, and the best by held-out loss, are always kept."""

    every: int = 1000
    """Steps between checkpoints. The last one, and the best by held-out loss, are always kept."""
    max_to_keep: int = 2
    """How many of the newest checkpoints are kept."""
    keep_every: int = 0
    """Keep each checkpoint whose step is a multiple of this, for ever; 0 is none."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.max_to_keep < 1 or self.keep_every < 0:
            raise ValueError("save.every and save.max-to-keep must be at least 1, save.keep-every at least 0")
        # Only steps that are saved can be kept.
        if self.keep_every % self.every:
            raise ValueError(f"save.keep-every={self.keep_every} is not a multiple of save.every={self.every}")


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Logging. Every step is in metrics.jsonl whatever is set here."""

    every: int = 10
    """Steps whose figures are fetched from the device together. Every step is in metrics.jsonl all the same."""
    tensorboard: bool = True
    """Write the figures for TensorBoard too, in the run's folder."""
    to: tuple[Literal["wandb", "mlflow", "aim"], ...] = ()
    """Experiment trackers that receive the figures too: Weights & Biases, MLflow, Aim."""
    profile: str = ""
    """Steps to trace, FIRST:LAST, as 100:110: the trace is in the run's folder, for XProf and Perfetto, and its slowest
    operations are printed."""
    details: bool = False
    """Print every parameter and every label at the start, instead of their sums."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"log.every={self.every} is not a positive number of steps")
        first, _, last = self.profile.partition(":")
        if self.profile and not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
            raise ValueError(f"log.profile={self.profile} is not FIRST:LAST, two steps from 1 on, as 100:110")
        # The same tracker twice would get each figure twice.
        if len(set(self.to)) < len(self.to):
            raise ValueError(f"log.to={' '.join(self.to)} names a tracker twice")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Held-out figures while training, where there is held-out text."""

    every: int = 0
    """Steps between evaluations; 0 is ten evaluations in a run, or one after each epoch where it has more epochs."""
    batch: int = 0
    """Sequences at a time; 0 is as in training."""
    metric: str = "loss"
    """The metric that the best checkpoint is chosen by. Losses, errors and perplexities: the lowest value; all others:
    the highest."""
    patience: int = 0
    """Evaluations in a row without a better figure after which the run stops; 0 is never. Each is saved then."""

    def __post_init__(self) -> None:
        if self.every < 0 or self.batch < 0 or self.patience < 0:
            raise ValueError("evaluate.every, evaluate.batch and evaluate.patience must be at least 0")


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    """Initialises from another run's parameters instead of randomly."""

    run: str = ""
    """The folder of the run to begin from; its vocabulary comes along. Without it, parameters are random."""
    step: int = 0
    """The step of its checkpoint; 0 is the best of a run with --evaluate.patience, else the newest good one."""
    random: bool = False
    """Take its model and vocabulary, but none of its parameters: the baseline that a pretraining is compared with."""
    grow: bool = False
    """Let tables (vocabulary, positions, segments) be larger than its own; the new rows are random."""
    drop_heads: bool = False
    """Initialise all heads randomly, also one that would fit."""
    redraw_layers: int = 0
    """How many of the top layers are initialised randomly instead of taken over, and a BERT's pooler with them."""

    def __post_init__(self) -> None:
        if self.redraw_layers < 0:
            raise ValueError(f"init.redraw-layers={self.redraw_layers} is not at least 0")
        # Two ways to say almost the same thing: one at a time.
        if self.redraw_layers and self.random:
            raise ValueError("init.redraw-layers has no meaning where init.random draws all layers; leave one out")
