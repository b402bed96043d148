"""The model families, whole: a configuration, how its text is read, and how it is trained. Needs no jax."""

from dataclasses import dataclass

from contexture.data.families.base import TextFamily
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, Mix, ModelConfig, VectorsConfig


@dataclass(frozen=True, kw_only=True)
class TrainedFamily:
    """What training needs to know of a family.

    config        the class of its configuration
    text          how it reads text
    objective     what it is pretrained on, a key of `objectives.OBJECTIVES`
    lora_targets  the parts of paths whose kernels get adapters, if the user names none
    mix           which layers a task's head reads, if the user names none (`HeadConfig.mix`)
    frozen        what a task does not train, if the user names nothing (`OptimConfig.frozen`)
    exports       the format of another library that holds its runs
    next_command  what most people do with a pretrained run, {run}
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
        config=BertConfig,
        text=TEXT_FAMILIES["bert"],
        objective="mlm_nsp",
        next_command='fill {run} --text "The [MASK] is here."',
    ),
    "gpt": TrainedFamily(
        config=GptConfig,
        text=TEXT_FAMILIES["gpt"],
        objective="lm",
        next_command='generate {run} --prompt "The"',
    ),
    "elmo": TrainedFamily(
        config=ElmoConfig,
        text=TEXT_FAMILIES["elmo"],
        objective="bilm",
        # LSTMs have no queries and values. They are what mixes over length, as attention is elsewhere.
        lora_targets=("layers",),
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
    return FAMILIES[config.family].text
