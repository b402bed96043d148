"""What is as long as its limit is taken; what is one longer is refused, or is not compared."""

import dataclasses

import pytest

from contexture.configs import recipe
from contexture.data.errors import LONGEST_NAME, DataError, did_you_mean
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.data.tasks.encode.example_tokens import _LARGEST, answer
from contexture.data.tasks.read.examples import Text
from contexture.data.tasks.read.labels import MAX_ALTERNATIVES, Labels
from contexture.data.tokenizers import registry
from contexture.models.config import MAX_PARAMETERS, MAX_SIZE, require_parameters_fit


def test_a_long_name_is_compared_with_others_up_to_its_limit():
    name = "a" * LONGEST_NAME
    assert did_you_mean(name, [name.upper()]) == f" (did you mean {name.upper()}?)"
    assert did_you_mean(name[:-1] + "b", [name]) == f" (did you mean {name}?)"
    for word, known in ((name + "a", name), (name, name + "a")):
        assert did_you_mean(word, [known]) == ""


def test_a_question_has_at_most_so_many_alternatives():
    assert len(Labels().alternatives(MAX_ALTERNATIVES, "a:1")) == MAX_ALTERNATIVES
    with pytest.raises(DataError, match=rf"a:1: {MAX_ALTERNATIVES + 1:,} alternatives; at most {MAX_ALTERNATIVES} can"):
        Labels().alternatives(MAX_ALTERNATIVES + 1, "a:1")


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_to_be_learned_is_within_its_limit(sign):
    assert answer(Text("a", f"{sign}{_LARGEST!r}", "a:1"), "regress", Labels()) == float(f"{sign}{_LARGEST!r}")
    with pytest.raises(DataError, match="is beyond"):
        answer(Text("a", f"{sign}{_LARGEST * 1.001!r}", "a:1"), "regress", Labels())


def test_a_vocabulary_to_be_learned_is_within_its_limit(monkeypatch):
    monkeypatch.setattr(registry, "LARGEST_LEARNED", 40)
    assert registry.learn("words", ["a b c"], 40, False).size <= 40
    with pytest.raises(DataError, match="a vocabulary of 41 tokens is too large to learn; give 40 at most"):
        registry.learn("words", ["a b c"], 41, False)


def test_whole_numbers_of_a_run_are_within_their_limit():
    base = recipe("bert.tiny")
    assert dataclasses.replace(base, steps=MAX_SIZE).steps == MAX_SIZE
    assert dataclasses.replace(base, seed=MAX_SIZE).seed == MAX_SIZE
    with pytest.raises(ValueError, match=f"steps=.* is not within {MAX_SIZE:,}; give a smaller number"):
        dataclasses.replace(base, steps=MAX_SIZE + 1)
    require_parameters_fit(MAX_PARAMETERS)
    with pytest.raises(ValueError, match="lower model.vocab, model.layers or its widths"):
        require_parameters_fit(MAX_PARAMETERS + 1)


def test_only_an_elmo_reads_the_first_bytes_of_a_word_alone():
    """48 of them: a longer word is counted as truncated."""
    counts = {name: family.truncated_words(["a" * 48, "b" * 49, "é" * 25]) for name, family in TEXT_FAMILIES.items()}
    assert counts == {"bert": 0, "gpt": 0, "elmo": 2, "vectors": 0}
