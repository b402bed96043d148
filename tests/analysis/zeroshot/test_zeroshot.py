"""Zero-shot tasks by trained models of each family, against the library's other ways to ask for probabilities."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

import contexture
from contexture.analysis.zeroshot import files
from contexture.analysis.zeroshot.alternatives import MEASURES, _by_group, choose, filled
from contexture.analysis.zeroshot.continuations import ScoredContinuation, score_continuations
from contexture.analysis.zeroshot.files import book_questions, passages, with_shots
from contexture.analysis.zeroshot.lambada import lambada, split_passage
from contexture.analysis.zeroshot.word_perplexity import join_tokens, word_perplexity
from contexture.cli import main as cli
from contexture.data.errors import DataError
from contexture.train.objectives import is_hit
from tests.helpers.commands import json_of
from tests.helpers.long import long
from tests.helpers.parity_rule import close

pytestmark = pytest.mark.usefixtures("one_device")
PAIRS = [
    ("the cat sees", " the dog"),
    ("a small dog", " likes my brother"),
    ("the queen", " xyzzy"),
    ("one old man follows the", " bird"),
]


@pytest.fixture(scope="module")
def gpt(gpt_run) -> contexture.TrainedModel:
    return contexture.open(gpt_run)


@pytest.fixture(scope="module")
def bert(tiny_run) -> contexture.TrainedModel:
    return contexture.open(tiny_run)


@pytest.fixture(scope="module")
def elmo(elmo_run) -> contexture.TrainedModel:
    return contexture.open(elmo_run)


def nats(model: contexture.TrainedModel, text: str) -> float:
    result = model.score(text)
    return result["loss"] * result["tokens"]


@pytest.mark.parametrize("batch", [3, *long(1, 8)])
def test_a_gpts_continuation_is_the_whole_text_less_its_context(gpt, batch):
    scored = list(score_continuations(gpt, PAIRS, batch=batch))
    close([each.log_prob for each in scored], [nats(gpt, a) - nats(gpt, a + b) for a, b in PAIRS])
    for (context, own), each in zip(PAIRS, scored, strict=True):
        tokens = len(gpt.tokenizer.encode([context + own])[0]) - len(gpt.tokenizer.encode([context])[0])
        assert each.tokens == tokens and each.truncated == 0
        written = gpt.generate(context, tokens=tokens, temperature=0)["text"]
        assert each.greedy == (written == own)
    # A continuation that the model writes itself is greedy in each token, and in the last.
    own = gpt.generate("the cat", tokens=4, temperature=0)["text"]
    (each,) = score_continuations(gpt, [("the cat", own)])
    assert each.greedy and each.last_greedy


def test_a_gpts_context_loses_its_beginning_where_both_are_too_long(gpt):
    length = gpt.model.config.length
    long = " ".join(["the cat sees the dog"] * length)
    (each,) = score_continuations(gpt, [(long, " bird")])
    ids = gpt.tokenizer.encode([long])[0]
    own = len(gpt.tokenizer.encode([" bird"])[0])
    assert each.truncated == 1 + len(ids) - (length + 1 - own)
    with pytest.raises(DataError, match=f"example 0: the continuation has .* and the model takes {length}"):
        list(score_continuations(gpt, [("a", long)]))


@pytest.mark.parametrize("family", ["gpt", *long("bert")])
def test_one_warning_names_the_length_of_training(family, request, caplog):
    model = request.getfixturevalue(family)
    trained = model.run.data.length
    assert trained < model.model.config.length
    marks = 1 if family == "gpt" else 2  # the end of a document before it, or [CLS] and [SEP]
    context = " ".join(["the"] * (trained - marks - (family == "bert")))
    assert len(model.tokenizer.encode([context])[0]) == len(context.split())
    list(score_continuations(model, [(context, " the")]))
    assert not caplog.records
    list(score_continuations(model, [(f"{context} the", " the")] * 3, batch=2))
    assert [record.getMessage() for record in caplog.records] == [
        f"trained on sequences of at most {trained} tokens; text beyond that may degrade, and here are {trained + 1}"
    ]


def test_a_berts_continuation_is_that_of_each_masked_token(bert):
    (each,) = score_continuations(bert, [("the cat", " sees the dog")], batch=2)
    words, total = "the cat sees the dog".split(), 0.0
    for place in (2, 3, 4):
        masked = " ".join([*words[:place], "[MASK]", *words[place + 1 :]])
        (scores,) = bert.fill(masked, bert.tokenizer.size)
        total += math.log(next(row["score"] for row in scores if row["token"] == words[place]))
        hit = scores[0]["token"] == words[place]
    close(each.log_prob, total, tolerance=1e-4)
    assert each.tokens == 3 and each.last_greedy == hit


def test_an_elmos_continuation_is_the_mean_of_both_directions(elmo):
    scored = list(score_continuations(elmo, [*PAIRS, ("", "the cat")], batch=2))
    close([each.log_prob for each in scored], [-nats(elmo, a + b) for a, b in [*PAIRS, ("", "the cat")]])
    assert [each.tokens for each in scored] == [2, 3, 1, 1, 2]


@pytest.mark.parametrize("family", ["gpt", "bert", "elmo"])
def test_lambada_is_the_last_word_and_the_last_token(family, request):
    model = request.getfixturevalue(family)
    texts = ["the cat sees the dog", "a small dog likes my brother\n", "one bird follows that cat"]
    result = lambada(model, texts, batch=2)
    scored = list(score_continuations(model, [split_passage(text, 0) for text in texts]))
    words = [each.last if family == "elmo" else each.log_prob for each in scored]
    close(result["perplexity"], math.exp(-np.mean(words)))
    close(result["last_token_perplexity"], math.exp(-np.mean([each.last for each in scored])))
    assert result["accuracy"] == np.mean([each.greedy for each in scored]) and result["examples"] == 3
    assert result["accuracy"] <= result["last_token_accuracy"]
    assert split_passage("He said: hello there ", 0) == ("He said: hello", " there")


def test_passages_of_text_and_of_compressed_objects_are_the_same(tmp_path: Path):
    texts = ["the cat sees the dog", "one bird"]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    assert [*passages(str(tmp_path / "a.txt"))] == [*passages(str(tmp_path / "a.jsonl.gz"))] == texts


def test_a_blank_is_filled_and_the_rest_is_scored_with_it():
    assert filled("The cat", "sat.", 0) == ("The cat", " sat.")
    assert filled("He saw XXXXX there.", "her", 0) == ("He saw", " her there.")
    assert filled("The trophy did not fit, as _ was too big", "the trophy", 0) == (
        "The trophy did not fit, as",
        " the trophy was too big",
    )
    assert filled("_ slept.", "Ann", 0) == ("", "Ann slept.") and filled("a snake_case word", "x", 0)[1] == " x"
    with pytest.raises(DataError, match="example 3: the text has 2 blanks; give it one"):
        filled("_ and _", "a", 3)


def test_the_chosen_alternative_is_the_most_probable_one(gpt):
    texts, choices, labels = ["the cat sees", "a XXXXX dog"], [("the dog", "a", "xyzzy"), ("small", "old")], [0, 1]
    result = choose(gpt, texts, choices, labels, ["f", "m"], batch=2)
    pairs = [filled(text, each, 0) for text, own in zip(texts, choices, strict=True) for each in own]
    log_probs = [nats(gpt, a) - nats(gpt, a + b) for a, b in pairs]
    close(np.concatenate(result["log_probs"]), log_probs)
    chosen = [int(np.argmax(log_probs[:3])), int(np.argmax(log_probs[3:]))]
    assert result["chosen"].tolist() == chosen
    right = [a == b for a, b in zip(chosen, labels, strict=True)]
    assert result["accuracy"] == np.mean(right)
    assert result["groups"]["f"] == {"examples": 1, "accuracy": float(right[0]), "standard_error": None}
    assert result["gap"] == float(right[0]) - float(right[1])
    sizes = [len(b.strip().encode()) for _, b in pairs]
    by_byte = np.array(log_probs) / sizes
    assert result["accuracy_per_byte"] == np.mean([by_byte[:3].argmax() == 0, by_byte[3:].argmax() == 1])


@pytest.mark.parametrize(
    ("tokenised", "plain"),
    [
        ("It 's a film , he said .", "It's a film, he said."),
        ("They do n't ; we 'll see : yes !", "They don't; we'll see: yes!"),
        ("1 @,@ 000 guest @-@ stars , 2 @.@ 5 m", "1,000 guest-stars, 2.5 m"),
        ('He called it " a ( very ) good play " in 2000', 'He called it "a (very) good play" in 2000'),
        ("the boys ' room and Teddy 's", "the boys' room and Teddy's"),
        (" = = Career = = \n \n text", " == Career ==\n\ntext"),
        ("10 ° C", "10°C"),
        ("nothing to join here", "nothing to join here"),
    ],
)
def test_tokens_are_joined_as_they_were_written(tokenised, plain):
    assert join_tokens(tokenised) == plain


def test_perplexity_by_word_divides_by_the_originals_words(gpt):
    lines = [" = One = ", "", " the cat , the dog ", " = = Part = = ", " a bird . ", " = Two = ", " my brother ", ""]
    result = word_perplexity(gpt, lines, "wikitext")
    articles = [" = One =\n\nthe cat, the dog\n == Part ==\na bird.", " = Two =\nmy brother"]
    documents = ["\n".join(map(str, lines[:5])).strip("\n"), "\n".join(lines[5:7])]
    assert [join_tokens(each).split() for each in documents] == [each.split() for each in articles]
    total = sum(nats(gpt, join_tokens(each)) for each in documents)
    words, ends = sum(len(line.split()) for line in lines), 6
    assert (result["documents"], result["words"]) == (2, words) and words == 21
    close(result["word_perplexity"], math.exp(total / words))
    close(result["word_perplexity_line_ends"], math.exp(total / (words + ends)))
    sentences = ["the cat sees the dog .", "a bird ."]
    result = word_perplexity(gpt, [*sentences, ""], "lm1b")
    total = sum(nats(gpt, join_tokens(each)) for each in sentences)
    close(result["word_perplexity_line_ends"], math.exp(total / (9 + 2)))


BOOK = "".join(f"{n} the cat sees {n} dogs .\n" for n in range(1, 21))
QUESTION = "21 the XXXXX sleeps .\tcat\t\tdog|cat|bird\n"


def test_the_book_test_is_read_as_it_is_shipped(gpt_run, tmp_path: Path):
    file = tmp_path / "cbt.txt"
    file.write_text(f"{BOOK}{QUESTION}\n{BOOK}{QUESTION}\n")
    read = book_questions(str(file))
    assert len(read.texts) == 2 and read.choices[0] == ("dog", "cat", "bird") and read.labels == [1, 1]
    assert read.texts[0].startswith("the cat sees 1 dogs . the") and read.texts[0].endswith(" the XXXXX sleeps .")
    result = json_of("zeroshot", gpt_run, "--task", "cbt", "--input", file, "--to", tmp_path / "answers.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert result["examples"] == 2 and [row["label"] for row in rows] == [1, 1]
    assert result["accuracy"] == np.mean([row["chosen"] == 1 for row in rows])
    assert all(row["chosen"] == int(np.argmax(row["log_probs"])) for row in rows)


def test_a_line_that_is_too_long_for_a_text_is_refused(tmp_path: Path, monkeypatch):
    """Of every publisher's form that is read line by line: tokens would take many times its memory."""
    file = tmp_path / "cbt.txt"
    file.write_text(f"{BOOK}{QUESTION}")
    assert len(book_questions(str(file)).texts) == 1
    monkeypatch.setattr(files, "LONGEST_TEXT", 16)
    monkeypatch.setattr("contexture.data.text.lines.LONGEST_LINE", 4)  # bytes that are read at a time
    for read in (book_questions, lambda path: list(passages(path))):
        with pytest.raises(DataError, match="cbt.txt:1: a line of more than 16 bytes"):
            read(str(file))


def test_shots_are_drawn_for_each_question(gpt_run, tmp_path: Path):
    rows = [{"text": f"the {word} sees", "choices": ["a dog", "the cat"], "label": n % 2, "sex": "fm"[n % 2]}
            for n, word in enumerate(("queen", "man", "bird", "brother", "dog"))]  # fmt: skip
    file = tmp_path / "choice.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = json_of("zeroshot", gpt_run, "--task", "choice", "--input", file, "--shots", "2", "--examples", file,
                     "--group", "sex", "--to", tmp_path / "out.jsonl")  # fmt: skip
    assert result["shots"] == 2 and {*result["groups"]} == {"f", "m"} and "gap" in result
    texts = [json.loads(line)["text"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [text.split("\n\n")[-1] for text in texts] == [row["text"] for row in rows]
    answers = [f"{row['text']} {row['choices'][row['label']]}" for row in rows]
    for number, text in enumerate(texts):
        shown = text.split("\n\n")[:-1]
        assert len(shown) == 2 and {*shown} <= {*answers} - {answers[number]}
    with pytest.raises(DataError, match="shots=5, and there are 4 examples to draw them from beside the question"):
        from contexture.analysis.zeroshot.files import questions
        from contexture.data.config import TaskConfig

        read = questions([str(file)], TaskConfig(kind="choice"))
        with_shots(read, read, 5, 0)


def test_an_answered_example_has_its_answer_in_the_blank(gpt_run, tmp_path: Path):
    file = tmp_path / "cbt.txt"
    file.write_text(f"{BOOK}{QUESTION}\n{BOOK}{QUESTION.replace('sleeps', 'sees')}\n")
    to = tmp_path / "answers.jsonl"
    json_of("zeroshot", gpt_run, "--task", "cbt", "--input", file, "--shots", "1", "--examples", file, "--to", to)
    first, second = (json.loads(line)["text"].split("\n\n") for line in to.read_text().splitlines())
    assert first[0].endswith(" the cat sees .") and second[0].endswith(" the cat sleeps .")
    assert first[1].endswith(" the XXXXX sleeps .") and second[1].endswith(" the XXXXX sees .")


MISTAKES = {
    "zeroshot RUN --task choice --input none.tsv": "none.tsv: --input names no such file; check the path",
    "zeroshot RUN --task lambada --input none.txt": "none.txt: no such file; give one with a passage in each line",
    "zeroshot RUN --task lambada --input ONE": "one.txt:1: 'alone' has fewer than two words; a context and a last",
    "zeroshot RUN --task lambada --input EMPTY": "there are no passages; give a text with one in each line",
    "zeroshot RUN --task lambada --input BAD.jsonl": "bad.jsonl:1: no string `text` in the object; give the passage",
    "zeroshot RUN --task lambada --input BROKEN.jsonl": "broken.jsonl:1: not JSON (",
    "zeroshot RUN --task cbt --input ONE": "one.txt:1: line 1 of a question begins with 'alone', not with its number",
    "zeroshot RUN --task cbt --input EMPTY": "empty.txt: no whole question of 21 numbered lines; give a file of the",
    "zeroshot RUN --task choice --input CHOICE --group sex": "choice.jsonl:1: no column 'sex'; name one of the file:",
    "zeroshot RUN --task lambada --input ONE --group sex": "group= has no meaning for --task lambada; it is for choice",
    "zeroshot RUN --task choice --input CHOICE --shots 1": "give --shots N and the files to draw them from, --examples",
    "zeroshot BERT --task choice --input CHOICE --shots 1 --examples CHOICE": "--shots is for a GPT, which reads on",
    "zeroshot RUN --task choice --input UNLABELLED": "the columns are 'text', 'choices'; name it with --label",
    "zeroshot RUN --task choice --input MARKED": "or name them in their order: --labels 1 2",
    "zeroshot RUN --task qa --input UNLABELLED": "'choices'; call the columns question, context and answers",
    "zeroshot RUN --task wikitext --input EMPTY": "there is no token to score in the text; give text",
    "zeroshot RUN --task lambda --input ONE": "--task is 'lambda', not one of lambada, cbt, choice, blimp, wikitext",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(gpt_run, tiny_run, tmp_path, capsys, words):
    texts = {"ONE": ("one.txt", "alone\n"), "EMPTY": ("empty.txt", "\n"), "BAD.jsonl": ("bad.jsonl", "{}\n"),
             "BROKEN.jsonl": ("broken.jsonl", "{\n"),
             "CHOICE": ("choice.jsonl", '{"text": "a", "choices": ["b", "c"], "label": 0}\n'),
             "MARKED": ("marked.jsonl", '{"text": "a", "choices": ["b", "c"], "label": 2}\n'),
             "UNLABELLED": ("unlabelled.jsonl", '{"text": "a", "choices": ["b", "c"]}\n')}  # fmt: skip
    places = {"RUN": gpt_run, "BERT": tiny_run}
    for word, (name, text) in texts.items():
        (tmp_path / name).write_text(text)
        places[word] = tmp_path / name
    assert cli.main([str(places.get(word, word)) for word in words.split()]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "Error" in line]
    assert MISTAKES[words] in line


@pytest.mark.parametrize("label", [0, 1])
def test_a_tie_of_alternatives_is_no_hit(gpt, label: int):
    """In every batch, and with a third alternative between the two."""
    for own in (("a dog", "a dog"), ("the cat sees the dog", "xyzzy", "the cat sees the dog")):
        result = choose(gpt, ["the cat sees"], [own], [label * (len(own) - 1)], batch=1)
        assert [result[name] for name in MEASURES] == [0.0] * 3


def test_a_hit_is_greater_than_all_others():
    assert is_hit(np.array([0.0, 2.0, 1.0]), 1) and not is_hit(np.array([0.0, 2.0, 1.0]), 0)
    assert not any(is_hit(np.array(scores), n) for scores in ([2.0, 2.0, 1.0], [math.nan, 1.0, 0.0]) for n in range(3))


def _scored(monkeypatch, module: str, *scores: ScoredContinuation) -> None:
    monkeypatch.setattr(f"contexture.analysis.zeroshot.{module}.score_continuations", lambda *_, **__: iter(scores))


def test_each_accuracy_of_a_choice_is_its_own_count(gpt, monkeypatch):
    """The log probabilities, tokens and bytes of these alternatives each prefer another one; ÄÖÜ has six bytes."""
    own = ["ÄÖÜ", "abcd", "fgh"]
    by_hand = {"accuracy": [-9.0, -7.0, -6.0], "accuracy_per_token": [-9 / 4, -7 / 4, -6 / 1],
               "accuracy_per_byte": [-9 / 6, -7 / 4, -6 / 3]}  # fmt: skip
    assert [int(np.argmax(each)) for each in by_hand.values()] == [2, 1, 0]
    assert np.argmax(np.array([-9, -7, -6]) / [len(each) for each in own]) != 0  # by characters it is another one
    for label in range(3):
        _scored(monkeypatch, "alternatives", *(
            ScoredContinuation(p, n, p, False, False, 0) for p, n in zip([-9.0, -7.0, -6.0], [4, 4, 1], strict=True)
        ))  # fmt: skip
        result = choose(gpt, ["the cat sees"], [own], [label])
        for name, values in by_hand.items():
            assert result[name] == float(np.argmax(values) == label), (name, label)


def test_white_space_around_an_alternative_is_no_part_of_it(gpt, monkeypatch):
    assert filled("The cat", "  sat. ", 0) == filled("The cat", "sat.", 0) == ("The cat", " sat.")
    for choices in (("ab", "abcd"), (" ab   ", "\tabcd\n")):
        _scored(monkeypatch, "alternatives", *(ScoredContinuation(p, 1, p, False, False, 0) for p in (-4.0, -7.0)))
        assert choose(gpt, ["the"], [choices], [1])["accuracy_per_byte"] == 1.0  # -4 / 2 < -7 / 4


def test_lambadas_last_word_and_its_last_token_are_two_figures(gpt, monkeypatch):
    _scored(
        monkeypatch, "lambada",
        ScoredContinuation(-3.0, 2, -1.0, False, True, 0), ScoredContinuation(-1.0, 1, -1.0, True, True, 0),
        ScoredContinuation(-8.0, 3, -4.0, False, False, 0),
    )  # fmt: skip
    result = lambada(gpt, ["a b", "c d", "e f"])
    assert (result["accuracy"], result["last_token_accuracy"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert (result["loss"], result["last_token_loss"]) == (4.0, 2.0)
    assert (result["perplexity"], result["last_token_perplexity"]) == pytest.approx((math.exp(4), math.exp(2)))


def test_the_last_of_an_elmo_is_its_last_word_read_forward(elmo):
    """By forward losses of the sentence alone: that of its end and those of the other direction are no part."""
    scorer = elmo.token_scorer()
    ((row, predicted),) = scorer.predicted(scorer.continuation("the cat", "sees the dog", 0).rows, 1)
    assert row.read == ["the", "cat", "sees", "the", "dog"]
    forward = predicted["forward"].nats
    (each,) = score_continuations(elmo, [("the cat sees", "the dog")])
    close(each.last, -forward[4])
    assert len({round(float(x), 4) for x in forward[3:6]}) == 3


def test_only_two_groups_have_a_gap():
    right, own = np.array([True, False, True, True]), {"a": 1.0, "b": 0.5, "c": 1.0}
    for names, gap in (("abbc", {}), ("abba", {"gap": 0.5})):
        figures = _by_group(right, names)
        assert {name: each["accuracy"] for name, each in figures.pop("groups").items()} == {n: own[n] for n in {*names}}
        assert figures == gap
