"""The model families, whole: a configuration, how its text is read, and how it is trained. Needs no jax."""

from dataclasses import dataclass

from contexture.data.families.base import TextFamily
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, Mix, ModelConfig, VectorsConfig


@dataclass(frozen=True, kw_only=True)
class TrainedFamily:
    """The facts about a family that training needs.

    Args:
        config: the class of its configuration
        text: how it reads text
        objective: its pretraining objective, a key of `objectives.OBJECTIVES`
        lora_targets: parts of the paths of kernels that get adapters by default
        mix: the default of `HeadConfig.mix`: which layers a task's head reads
        frozen: the default of `OptimConfig.frozen`: what a task does not train
        exports: the format to export its runs to
        next_command: what most people do next with a pretrained run; {run} is its folder
    """

    config: type[ModelConfig]
    text: TextFamily
    objective: str
    lora_targets: tuple[str, ...] = ("query", "value")
    mix: Mix = "off"
    frozen: tuple[str, ...] = ()
    exports: str = "hf"
    next_command: str


FAMILIES: dict[str, TrainedFamily] = {
    "bert": TrainedFamily(
        # The defaults above fit: query and value adapters, all parameters trained, heads on the last layer.
        config=BertConfig,
        text=TEXT_FAMILIES["bert"],
        objective="mlm_nsp",
        next_command='fill {run} --text "The [MASK] is here."',
    ),
    "gpt": TrainedFamily(
        config=GptConfig,
        text=TEXT_FAMILIES["gpt"],
        objective="lm",
        # All other fields as in BERT: GPT-1, too, is fine-tuned whole.
        next_command='generate {run} --prompt "The"',
    ),
    "elmo": TrainedFamily(
        config=ElmoConfig,
        text=TEXT_FAMILIES["elmo"],
        objective="bilm",
        # LSTMs have no queries and values. They are what mixes over length, as attention is elsewhere.
        lora_targets=("layers",),
        # A task trains scalar mix and head on frozen states, as the paper uses ELMo (Peters et al. 2018, section 3.3).
        mix="all",
        frozen=("backbone",),
        exports="bilm",
        next_command="embed {run} --input FILE --to vectors.npz",
    ),
    "vectors": TrainedFamily(
        config=VectorsConfig,
        text=TEXT_FAMILIES["vectors"],
        # The vectors come from elsewhere: there is nothing to pretrain.
        objective="static",
        mix="words",
        exports="stablehlo",
        next_command="finetune {run} --task.kind classify --task.train FILE --dir NEW",
    ),
}


def text_family(config: ModelConfig) -> TextFamily:
    """Returns how a model's family reads text."""
    # By name and not by class: the registry is the one place that lists families.
    return FAMILIES[config.family].text
