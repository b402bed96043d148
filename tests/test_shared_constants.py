"""Constants that models and data state each for itself, since neither imports the other: they agree by name."""

from typing import Any, cast, get_args

import jax
import pytest

from contexture.configs import recipes
from contexture.configs.finetuning import finetune_run
from contexture.data.config import Family, Stream
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.data.task_kinds import KINDS
from contexture.data.tokenizers import elmo_char_ids
from contexture.models import config, elmo
from contexture.models.families import MODEL_FAMILIES, example
from contexture.models.layers import char_cnn
from contexture.models.model import Outputs
from contexture.train.checkpoints.transfer import model_of
from contexture.train.families import FAMILIES
from contexture.train.objectives import OBJECTIVES, batch_fields, batch_sizes, objective_of
from contexture.train.settings.run import Run
from tests.helpers.long import long


def test_characters_of_words_are_numbered_alike():
    assert elmo_char_ids.PADDING == char_cnn.PADDING == char_cnn.CHARACTERS, "the padding has no row in the table"
    assert elmo_char_ids.WIDTH == config.WORD_CHARS
    assert elmo_char_ids.FIRST_WORD == elmo.FIRST_WORD == max(elmo.BEGIN, elmo.END) + 1


def test_the_rows_of_special_words_are_where_the_model_reads_them():
    table = elmo_char_ids.word_table(elmo_char_ids.char_ids(["a"]), 8)
    assert elmo_char_ids.BEGIN_SENTENCE in table[elmo.BEGIN] and elmo_char_ids.END_SENTENCE in table[elmo.END]
    assert (table[elmo.FIRST_WORD, :3] == [elmo_char_ids.BEGIN_WORD, ord("a") + 1, elmo_char_ids.END_WORD]).all()


PRETRAINED = ("bert.tiny", "gpt.tiny", "elmo.tiny")


def _read_by(run: Run) -> tuple[set[str], set[str]]:
    """The fields that a run's batches hold, and those that its model and its objective read."""
    fields, model, objective = batch_fields(run), model_of(run, ("0", "1")), objective_of(run)
    batch = example(fields, batch_sizes(run, 2))
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), batch)["params"])

    def step(batch: Any, params: Any) -> Any:
        outputs = cast(Outputs, model.apply({"params": params}, batch))
        return objective.weights(batch), objective.sums(outputs, batch)

    program = jax.make_jaxpr(step)(batch, params).jaxpr
    used = {variable for equation in program.eqns for variable in equation.invars if not hasattr(variable, "val")}
    names = sorted(batch)
    return set(fields), {name for name, variable in zip(names, program.invars, strict=False) if variable in used}


@pytest.mark.parametrize("recipe", PRETRAINED)
def test_each_field_of_a_pretraining_batch_is_read_under_its_name(recipe: str):
    held, read = _read_by(recipes()[recipe]())
    # A GPT's attention needs no mask: padding stands behind the text.
    assert read <= held and held - read <= {"mask", "valid"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["bert", *long("gpt", "elmo", "vectors")])
def test_each_field_of_a_tasks_batch_is_read_under_its_name(family: str, kind: str):
    vectors = Run(model=config.VectorsConfig(vocab=9, hidden=4))
    source = vectors if family == "vectors" else recipes()[f"{family}.tiny"]()
    held, read = _read_by(finetune_run(source, "", kind))
    assert read <= held and held - read <= {"mask", "valid", "choices"}


def test_each_family_is_whole():
    """An object on each side, under one name; what is pretrained has a stream and an objective."""
    assert FAMILIES.keys() == TEXT_FAMILIES.keys() == set(get_args(Family))
    for name, family in FAMILIES.items():
        assert (family.config.family, family.text.name, family.text) == (name, name, TEXT_FAMILIES[family.text.name])
        assert family.config in MODEL_FAMILIES and family.objective in OBJECTIVES
        assert family.text.is_causal == family.config.is_causal
        assert family.text.stream in (None, *get_args(Stream))
