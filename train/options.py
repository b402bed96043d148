"""The sections of a run beside its model, its data and its task: optimizer, mesh, saving, logging, evaluating, init.

Plain dataclasses: importing this costs nothing and needs no jax.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW in three forms, and Adagrad. `adamw`: Loshchilov & Hutter 2019. `bert`: the original's, without bias
    correction. `gpt1`: the original's, whose bias correction falls on the decay too and not on eps. `adagrad`: ELMo's,
    its sums of squares starting at 1, without eps (Duchi et al. 2011)."""

    name: Literal["bert", "adamw", "gpt1", "adagrad"] = "bert"
    peak_lr: float = 1e-4
    schedule: Literal["bert", "linear", "cosine", "gpt1"] = "bert"
    """After the warm-up: `bert` falls linearly as counted from step 0 (the original's formula), `linear` and
    `cosine` from the warm-up's end. `gpt1` falls linearly from step 0 on, the warm-up included."""
    warmup: int = 10_000
    """Steps in which the learning rate rises. As many as all steps or more: a tenth of them instead, with a warning."""
    warmup_fraction: float = 0.0
    """Instead of warmup: this share of all steps."""
    final_lr: float = 0.0
    """The rate that `linear` and `cosine` end at, as a fraction of peak-lr."""
    decay_steps: int = 0
    """The step at which `linear` and `cosine` end; 0: the last."""
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
    lora_rank: int = 0
    """Rank of the adapters that are trained instead of the backbone, beside the heads (LoRA); 0: no adapters."""
    lora_alpha: float = 8.0
    """An adapter's product is scaled by lora-alpha / lora-rank."""
    lora_targets: tuple[str, ...] = ()
    """Kernels whose path holds one of these words have adapters: `query value`, `attention`, `ffn`, or `all`. Empty:
    query and value; of an ELMo all kernels of its LSTMs."""
    clip: float = 1.0
    """Maximum global gradient norm; 0: no clipping."""
    gradient_scale: float = 1.0
    """adagrad multiplies the gradient with this before clipping; ELMo's original takes the length of a sequence."""
    moments: Literal["float32", "bfloat16"] = "float32"
    """What the moments of Adam are stored in; an update is computed in float32. bfloat16 halves their memory."""
    stochastic_rounding: bool = True
    """moments=bfloat16 is rounded up or down by chance, so that small updates add up; else to the nearest."""
    accumulate: int = 1
    """Parts that a batch is worked through in, one after the other; the step is the same. An ELMo's distinct words are
    those of the whole batch, and are read anew in each part."""
    max_skipped: int = 10
    """Steps in a row whose loss or gradient may be other than finite before the run stops."""

    def __post_init__(self) -> None:
        if self.moments == "bfloat16" and self.name == "adagrad":
            raise ValueError("optim.moments=bfloat16 is for Adam; adagrad's sums of squares want float32")
        for name, low, high in (
            ("peak_lr", 0.0, math.inf),
            ("final_lr", 0.0, 1.0),
            ("b1", 0.0, 1.0),
            ("b2", 0.0, 1.0),
            ("eps", 0.0, math.inf),
            ("weight_decay", 0.0, math.inf),
            ("lora_alpha", 0.0, math.inf),
            ("clip", 0.0, math.inf),
            ("gradient_scale", 0.0, math.inf),
            ("warmup_fraction", 0.0, 1.0),
            ("layer_decay", 0.0, 1.0),
        ):
            value = getattr(self, name)
            may_be_low = name not in ("peak_lr", "eps", "layer_decay", "gradient_scale", "lora_alpha")
            may_be_high = name in ("final_lr", "layer_decay")
            if not (low < value < high or (may_be_low and value == low) or (may_be_high and value == high)):
                bounds = f"{'at least' if may_be_low else 'above'} {low:g}"
                bounds += f" and {'at most' if may_be_high else 'below'} {high:g}"
                raise ValueError(f"optim.{name.replace('_', '-')}={value} is not {bounds}")
        if "backbone" in self.frozen and (self.layer_decay != 1.0 or self.frozen_layers):
            name = "frozen-layers" if self.frozen_layers else "layer-decay"
            raise ValueError(
                f"optim.{name} has no meaning where optim.frozen=backbone keeps every layer as it is; leave one out "
                "(an ELMo's is frozen unless --optim.frozen says something else, as `bias`)"
            )
        for name in ("warmup", "frozen_layers", "decay_steps", "accumulate", "max_skipped", "lora_rank"):
            low = int(name in ("accumulate", "max_skipped"))
            if getattr(self, name) < low:
                raise ValueError(f"optim.{name.replace('_', '-')}={getattr(self, name)} is not at least {low}")
        self._check_lora()
        for name in ("final_lr", "decay_steps"):
            if self.schedule in ("bert", "gpt1") and getattr(self, name):
                raise ValueError(
                    f"optim.{name.replace('_', '-')}={getattr(self, name)} contradicts optim.schedule={self.schedule}, "
                    "which ends at 0 with the last step; give --optim.schedule linear or cosine"
                )

    @property
    def lora_scale(self) -> float:
        """What an adapter's product is multiplied with."""
        return self.lora_alpha / self.lora_rank

    def _check_lora(self) -> None:
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
    """How the devices are laid out: data × fsdp × tensor."""

    data: int = 0
    """Copies of the model that each take a share of the batch; 0: as many as the devices allow."""
    fsdp: int = 1
    """Parts that parameters and optimizer are cut into along the hidden width, each with a share of the batch."""
    tensor: int = 1
    """Parts that heads, feed-forward width and vocabulary are cut into."""
    compiler_options: tuple[str, ...] = ()
    """Options of XLA, name=value each: they are added to those that are set for the device, or replace them."""
    distributed: bool = False
    """Several processes, found by jax.distributed: on a TPU pod or under SLURM, MPI or Kubernetes by itself,
    else by JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."""
    startup_minutes: float = 5.0
    """How long the processes wait for each other when they start."""
    peer_minutes: float = 2.0
    """How long a process may give no sign of life before the others end."""

    def __post_init__(self) -> None:
        for name in ("startup_minutes", "peer_minutes"):
            if not 0.05 <= getattr(self, name) <= 1440:
                raise ValueError(f"mesh.{name.replace('_', '-')}={getattr(self, name)} is not in 0.05 to 1440 minutes")
        for option in self.compiler_options:
            if not re.fullmatch(r"\w+=.+", option):
                raise ValueError(f"mesh.compiler-options={option!r} is not name=value")
        if self.data < 0 or self.fsdp < 1 or self.tensor < 1:
            raise ValueError("mesh.data must be at least 0 (0: what is left), mesh.fsdp and mesh.tensor at least 1")


@dataclass(frozen=True, kw_only=True)
class SaveConfig:
    """Checkpoints. The last one, and the best by held-out loss, are always kept."""

    every: int = 1000
    """Steps between checkpoints."""
    max_to_keep: int = 2
    """How many of the newest checkpoints are kept."""
    keep_every: int = 0
    """Keep each checkpoint whose step is a multiple of this, for ever; 0: none."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.max_to_keep < 1 or self.keep_every < 0:
            raise ValueError("save.every and save.max-to-keep must be at least 1, save.keep-every at least 0")
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
    """Steps between evaluations; 0: at the end, and after each epoch where a run is counted in epochs."""
    batch: int = 0
    """Sequences at a time; 0: as in training."""
    metric: str = "loss"
    """The metric that the best checkpoint is chosen by: losses, errors and perplexities by the lowest value, all
    others by the highest."""
    patience: int = 0
    """Evaluations in a row without a better figure after which the run stops; each is saved then. 0: never."""

    def __post_init__(self) -> None:
        if self.every < 0 or self.batch < 0 or self.patience < 0:
            raise ValueError("evaluate.every, evaluate.batch and evaluate.patience must be at least 0")


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    """Initialises from another run's parameters instead of randomly."""

    run: str = ""
    """The folder of the run to begin from; its vocabulary comes along. Empty: random initialisation."""
    step: int = 0
    """Its checkpoint; 0: the newest good one."""
    random: bool = False
    """Take its model and vocabulary, but none of its parameters: the baseline that a pretraining is compared with."""
    grow: bool = False
    """Tables (vocabulary, positions, segments) may be larger than its own; the new rows are random."""
    drop_heads: bool = False
    """Initialise all heads randomly, also one that would fit."""
