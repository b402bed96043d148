"""A BERT's and an ELMo's scores of text, against one word at a time; a GPT's are in test_generate.py."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest

import contexture
from contexture.analysis.results import TextCounts
from contexture.analysis.scoring.families import token_scorer
from contexture.analysis.scoring.scorer import Row, perplexity, windows_of
from contexture.data.errors import DataError
from contexture.data.layouts import elmo_lines
from contexture.data.packing import apart
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.models.config import BertConfig, ElmoConfig
from contexture.models.families import build, example
from tests.helpers.commands import done, json_of, run_command
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_differs, close
from tests.helpers.random_runs import random_parameters
from tests.helpers.scoring import score_texts

Opened = tuple[Any, Any, Any]
"""(model, parameters, tokenizer)."""
pytestmark = pytest.mark.usefixtures("one_device")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##d", "e"]
BERT = BertConfig(vocab=12, length=8, layers=1, hidden=8, heads=2, ffn=8, init_std=0.7)
ELMO = ElmoConfig(vocab=7, char_width=3, filters=((1, 4), (2, 4)), highway=1, cells=6, projection=4)


@pytest.fixture(scope="module")
def bert() -> Opened:
    fields = {"tokens": "i32 BL", "segments": "i32 BL", "mask": "i32 BL", "slots": "i32 BP"}
    model = build(BERT, ("mlm", "nsp"))
    params = random_parameters(model, example(fields, {"B": 1, "L": 8, "P": 1}), deviation=0.7)
    return model, params, WordPiece(PIECES, True)


def nats_of(logits: np.ndarray, label: int) -> float:
    logits = np.asarray(logits, np.float64)
    return float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label])


@pytest.mark.parametrize(("length", "stride", "batch"), [(6, 2, 8), *long((0, 0, 3), (6, 0, 1), (3, 1, 4))])
def test_a_berts_score_masks_each_token_alone(bert: Opened, length, stride, batch):
    """Each once, in the window that scores it; rows of the table beyond the vocabulary are no tokens."""
    model, params, pieces = bert
    documents = ["a bd c e a b c", "e", "", "c c b"]
    size = (length or 8) - 2
    step, nats, count = stride or size, 0.0, 0
    apply = jax.jit(lambda batch: model.apply({"params": params}, batch, only=("mlm",)).heads["mlm"][0, 0])
    for text in documents:
        (ids,) = pieces.encode([text])
        start = scored = 0
        while scored < len(ids):
            window = [pieces.cls, *ids[start : start + size], pieces.sep]
            for place in range(1 + scored - start, len(window) - 1):
                masked = np.array([[*window[:place], pieces.mask, *window[place + 1 :]]], np.int32)
                fields = {"tokens": masked, "segments": 0 * masked, "mask": 0 * masked + 1}
                logits = apply({**fields, "slots": np.array([[place]], np.int32)})
                nats += nats_of(logits[: len(PIECES)], window[place])
                count += 1
            scored, start = start + len(window) - 2, start + step
    result: Any = score_texts(*bert, documents, length=length, stride=stride, batch=batch)
    assert (result["documents"], result["tokens"], result["words"]) == (4, count, 11) and count == 12
    close(result["loss"], nats / count)
    close(result["pseudo_perplexity"], math.exp(nats / count))
    close(result["word_pseudo_perplexity"], math.exp(nats / 11))
    assert "perplexity" not in result and "masked alone" in result["convention"] and result["unknown"] == 0


def test_unknown_words_are_counted_and_no_word_has_no_perplexity(bert: Opened):
    result: Any = score_texts(*bert, ["a 漢 c ☃", "b"])
    assert (result["tokens"], result["unknown"], result["words"]) == (5, 2, 5)
    assert {"word_pseudo_perplexity", "pseudo_perplexity"} <= result.keys()


def test_windows_of_a_bert_score_each_token_once(bert: Opened):
    assert [*windows_of(7, 4, 2)] == [(0, 4, 4), (2, 6, 2), (4, 7, 1)]
    text, pieces = "a b c", bert[2]
    (ids,) = pieces.encode([text])
    totals: TextCounts = {"documents": 0, "tokens": 0, "words": 0, "bytes": 0}
    first, *_, last = token_scorer(*bert, length=4, stride=1).rows([text], totals)
    assert first == Row([pieces.cls, pieces.mask, ids[1], pieces.sep], (1,), (ids[0],), 0)
    assert last == Row([pieces.cls, ids[1], pieces.mask, pieces.sep], (2,), (ids[2],), 0)


def test_rows_that_are_scored_share_the_rows_of_a_batch():
    """Each is planned once, its label where its prediction is; at most a tenth of what is computed is padding."""
    config = dataclasses.replace(BERT, length=96)
    model = build(config, ("mlm",))
    scorer = token_scorer(model, {}, WordPiece(PIECES, True))
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(["a", "b", "c", "e"], size)) for size in draw.integers(1, 90, 40)]
    rows = [*scorer.rows(texts, {"documents": 0, "tokens": 0, "words": 0, "bytes": 0})]
    planned = [*scorer.planned(rows, 64)]
    assert sorted(number for each in planned for number in each.numbers) == [*range(len(rows))]
    for each in planned:
        batch = apart(each.fields)
        for number, (place,) in zip(each.numbers, each.places, strict=True):
            row, mask = rows[number], batch["mask"][place] > 0
            assert batch["tokens"][place][mask].tolist() == row.read
            assert (batch["slots"][place], batch["labels"][place]) == (row.places, row.labels)
    computed = sum(each.fields["tokens"].size for each in planned)
    assert computed <= 1.1 * sum(len(row.read) for row in rows)
    # Few shapes, of which each is a program.
    assert len({each.fields["tokens"].shape for each in planned}) <= 2


@pytest.fixture(scope="module")
def elmo() -> Opened:
    words = Words(["<S>", "</S>", "<UNK>", "the", "cat", "sees", "."], "punctuation")
    model = build(ELMO, ("bilm",))
    fields = {"types": "i32 RW", "index": "i32 BL", "next": "i32 BL", "next_weights": "f32 BL",
              "index_backward": "i32 BL", "next_backward": "i32 BL", "next_weights_backward": "f32 BL"}  # fmt: skip
    return model, random_parameters(model, example(fields, {"B": 1, "L": 2, "R": 8, "W": 50})), words


def test_an_elmos_score_is_that_of_both_directions_word_by_word(elmo: Opened):
    """Each prefix read anew, and its last state compared with every word of the vocabulary."""
    model, params, words = elmo
    text = "The cat sees the dog. The cat!\nthe\n"
    lines = [["The", "cat", "sees", "the", "dog", "."], ["The", "cat", "!"], ["the"]]
    kernel, bias = (np.asarray(params["heads_bilm"][name]) for name in ("kernel", "bias"))
    hidden_of = jax.jit(lambda batch: model.apply({"params": params}, batch, only=()).encoding.hidden_BLD)
    nats, count = [0.0, 0.0], 0
    for line in lines:
        for direction, (own, first, last) in enumerate(((line, 1, words.end), (line[::-1], 2, words.begin))):
            fields = elmo_lines([own], length=len(own))
            read = np.zeros((1, 8), np.int32)
            read[0, : len(own) + 1] = [first, *fields["index"][0]]
            for at, label in enumerate([*(words.ids.get(word, words.unk) for word in own), last]):
                prefix = np.where(np.arange(8) <= at, read, 0)
                some = {"types": fields["types"], "index": prefix, "index_backward": prefix}
                hidden = hidden_of(some)[0, at]
                nats[direction] += nats_of(kernel @ np.asarray(hidden[direction * 4 :][:4]) + bias, label)
        count += len(line) + 1
    for batch in (1, 2, 8):
        result: Any = score_texts(*elmo, [text], batch=batch)
        assert (result["documents"], result["tokens"], result["words"], result["unknown"]) == (1, count, 10, 4)
        close(result["forward_perplexity"], math.exp(nats[0] / count))
        close(result["backward_perplexity"], math.exp(nats[1] / count))
        close(result["perplexity"], math.exp(sum(nats) / 2 / count))
    whole = score_texts(*elmo, [text], batch=4, split_sentences=False)
    assert whole["tokens"] == count - 1 and "each line alone" in whole["convention"]


def test_mistakes_are_one_clear_line(bert: Opened, elmo: Opened):
    model, params, pieces = bert
    for call, message in (
        (lambda: score_texts(build(BERT, ("classify",)), {}, pieces, ["a"]), "has no head for masked tokens"),
        (lambda: score_texts(*bert, ["a"], length=9), "length=9 is not between 3 and the 8 tokens"),
        (lambda: score_texts(*bert, ["a"], length=2), "length=2 is not between 3 and the 8 tokens"),
        (lambda: score_texts(*bert, ["a"], length=6, stride=5), "stride=5 is not between 1 and 4"),
        (lambda: score_texts(*bert, ["", ""]), "no token to score"),
        (lambda: score_texts(*elmo, [" \n"]), "no token to score"),
        (lambda: score_texts(*elmo, ["a"], stride=2), "length and stride have no meaning for an ELMo"),
        (lambda: score_texts(build(ELMO), {"backbone": {}}, elmo[2], ["a"]), "has no softmax over words"),
        (lambda: score_texts(*elmo, ["a"], batch=0), "batch=0 is not a positive number of sentences$"),
    ):
        with pytest.raises(DataError, match=message):
            call()


def test_windows_are_as_long_as_in_training_where_no_length_is_given(gpt_run):
    """Of a model that takes longer ones."""
    model = contexture.open(gpt_run)
    text, trained = "the cat sees the river . " * 12, model.run.data.length
    given, longer = (model.score(text, length=length) for length in (trained, 2 * trained))
    assert model.score(text) == given and given.get("length") == trained
    assert given["tokens"] == longer["tokens"] > 2 * trained
    assert_differs(given["loss"], longer["loss"], 1e-4)


def test_the_command_scores_every_family(tiny_run, elmo_run, tmp_path, capsys):
    file = tmp_path / "a.txt"
    file.write_text("The cat sees the river.\n\nMy brother paints.\n", "utf-8")
    for run, name in ((tiny_run, "pseudo_perplexity"), (elmo_run, "backward_perplexity")):
        result = json_of("score", run, "--input", file, "--documents", "blank_lines")
        assert result["documents"] == 2 and 1 < result[name] < 1000, result
    capsys.readouterr()
    done("score", tiny_run, "--input", file, "--length", "200")
    assert "windows of 200 tokens are longer than those of training, which had" in capsys.readouterr().err
    code, err = run_command(capsys, "score", elmo_run, "--input", file, "--length", "8")
    assert code == 2 and "have no meaning for an ELMo" in err.splitlines()[-1]


def test_a_perplexity_is_e_to_the_nats_and_infinite_without_room():
    assert perplexity(0.0) == 1.0 and perplexity(math.log(7.0)) == pytest.approx(7.0)
    assert perplexity(709.0) == pytest.approx(math.exp(709.0)) and perplexity(800.0) == math.inf
