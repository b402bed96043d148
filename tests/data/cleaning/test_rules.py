"""The rules of C4 and Gopher are those of their papers, and the bytes they take are the bytes that go."""

import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.cleaning import c4, gopher
from contexture.data.cleaning.rules import C4_RULES, GOPHER_RULES, lines_of, size, without, words_of
from contexture.data.text.lines import sentences
from tests.helpers.slow_cleaning import c4_left, gopher_refuses

PHRASES = [
    "The cat sat on the mat.", "Is it here that they have been?", "Too short.", "no end of a sentence here at all",
    "He said: “Be with us.”", 'She said that "it is so"', "Please enable Javascript to see this page.", "",
    "By this you accept our Terms of Use and more.", "It was built in 1900.[1]", "Darn, this is a bad word indeed.",
    "Nobody knows it at all.[citation needed]", "   ", "[edit] The history of the town is long!",
    "a {brace} in a line of text.", "Lorem ipsum dolor sit amet for all.", "The darnel is a plant of fields.",
    "We use cookies on all of our pages, always.",
]  # fmt: skip
PAGE = st.lists(
    st.tuples(st.sampled_from(PHRASES), st.sampled_from(["\n", "\n", "\r\n", "\r", "\n\n"])), min_size=1, max_size=12
).map(lambda lines: "".join(map("".join, lines)))


@settings(max_examples=200, deadline=None)
@given(page=PAGE, bad=st.sampled_from([[], ["darn"], ["darn", "of fields"]]))
def test_c4_keeps_what_the_paper_keeps(page: str, bad: list[str]):
    left, removed = c4.clean(page, c4.bad_words_pattern(bad))
    expected = c4_left(page, bad)
    kept = [line.strip() for line in lines_of(left)]
    if expected is None:
        assert left == "" and [each.rule for each in removed][0] in C4_RULES[:3]
    elif sum(len(sentences(line)) for line in expected.split("\n")) < 3:
        assert left == "" and removed[-1].rule == "c4-sentences"
    else:
        assert kept == expected.split("\n")
    assert size(page) == size(left) + sum(each.bytes for each in removed)
    assert {each.rule for each in removed} <= set(C4_RULES)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("no end of a sentence here at all", "c4-terminal-punctuation"),
        ("Too short it is.", "c4-words"),
        ("Please enable JavaScript for this page.", "c4-javascript"),
        ("Read our privacy policy on that page.", "c4-policy"),
    ],
)
def test_each_line_goes_by_its_rule(line: str, rule: str):
    page = f"The cat sat on the mat.\n{line}\nThe dog sat on the mat.\nA man sat on the mat."
    left, removed = c4.clean(page, None)
    assert left == page.replace(f"{line}\n", "")
    assert [(each.rule, each.unit, each.bytes) for each in removed] == [(rule, "paragraph", len(line) + 1)]


WORDS = [
    *gopher.STOP_WORDS,
    "house",
    "water",
    "letters",
    "everything",
    "x",
    "#",
    "...",
    "1900",
    "-",
    "end.",
    "a…",
    "“To",
]


def _document(seed: int) -> str:
    """Lines of words, some of which come again: near the bounds of every rule."""
    chance = random.Random(seed)
    odd = chance.random() < 0.3
    words = WORDS if odd else [word for word in WORDS if word.isalpha()]
    weights = [chance.random() ** 3 for _ in words]
    pool = [" ".join(chance.choices(words, weights, k=chance.randint(1, 12))) for _ in range(chance.randint(1, 20))]
    # Words of their own beside the pool keep some documents free of repetition.
    fresh = iter([f"{chance.choice(('the', 'word', 'and'))}{number}" for number in range(2000)])
    lines: list[str] = []
    share, marks = chance.random() ** 2, chance.choice([[""], ["", "- "], ["• "], ["", *["- "] * 9]])
    length = chance.choice([45, 60, 200])
    while len(" ".join(lines).split()) < length:
        own = " ".join(
            [*(next(fresh) for _ in range(chance.randint(1, 12))), *chance.choices(["the", "of", "house"], k=2)]
        )
        lines.append(chance.choice(marks) + (chance.choice(pool) if chance.random() < share else own))
    ends = chance.choice([["\n"], ["\n", "\r\n"], ["\n", "\n\n", "\n \n"]])
    return "".join(line + chance.choice(ends) for line in lines)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_gopher_refuses_what_the_paper_refuses(seed: int):
    document = _document(seed)
    assert gopher.refused(document) == gopher_refuses(document)


_PROSE = [f"word{number}" for number in range(200)]
_LONG = [" ".join(_PROSE[at : at + 20]) for at in range(0, 200, 20)]
_BLOCKS = ["\n".join(_PROSE[at : at + 10]) for at in range(0, 100, 10)]
_TWO = [f"{one}{other}" for one in "abcdef" for other in "vwxyz"]


def _again(n: int, times: int, words: int) -> str:
    """A text of so many words, all of four letters, in which n of them come again, in their order."""
    fresh = iter([f"w{number:03d}" for number in range(200)])
    phrase = [next(fresh) for _ in range(n)]
    # A word between two phrases keeps longer ones from coming again.
    text = ["that", "with", *(word for _ in range(times) for word in (*phrase, next(fresh)))]
    return " ".join([*text, *(next(fresh) for _ in range(words - len(text)))])


EXAMPLES = {
    "": " ".join(["the and", *_PROSE]),
    "gopher-words": " ".join(["the and", *_PROSE[:47]]),
    "gopher-word-length": " ".join(["the and", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" * 2]),
    "gopher-hashes": " ".join(["the and", *_PROSE, *["#word"] * 23]),
    "gopher-ellipses": " ".join(["the and", *_PROSE, *["…"] * 12, *["..."] * 12]),
    "gopher-bullets": "\n".join(f"• {word} the and" for word in _PROSE[:60]),
    "gopher-ellipsis-lines": "\n".join(f"the and {line}{'…' if at < 4 else ''}" for at, line in enumerate(_LONG)),
    "gopher-letters": " ".join(["the and", *_PROSE, *(f"19{number}" for number in range(100, 160))]),
    "gopher-stop-words": " ".join(["the the", *_PROSE]),
    "gopher-duplicate-lines": "\n".join(["the and", *_PROSE[:60], *["x"] * 40]),
    "gopher-duplicate-paragraphs": "\n\n".join([*_BLOCKS, *["the and"] * 6]),
    "gopher-duplicate-line-characters": "\n".join(
        [*["the and of that and with the very long line"] * 4, *_LONG[:1], *_PROSE[:50]]
    ),
    "gopher-duplicate-paragraph-characters": "\n\n".join(["\n".join(_TWO)] * 2 + ["of the", "to and", *_PROSE[10:48]]),
    "gopher-top-2-gram": _again(2, 6, 55),
    "gopher-top-3-gram": _again(3, 4, 62),
    "gopher-top-4-gram": _again(4, 3, 70),
    **{
        f"gopher-duplicate-{n}-gram": _again(n, 2, round(2 * n / (gopher.MOST_DUPLICATE_GRAMS[n] + 0.005)))
        for n in range(5, 11)
    },
}


@pytest.mark.parametrize("rule", EXAMPLES)
def test_a_document_is_refused_by_this_rule(rule: str):
    assert gopher.refused(EXAMPLES[rule]) == gopher_refuses(EXAMPLES[rule]) == rule


def test_every_rule_of_gopher_has_such_a_document():
    assert list(EXAMPLES) == ["", *GOPHER_RULES]


@settings(max_examples=100, deadline=None)
@given(text=PAGE, seed=st.integers(0, 10**6))
def test_lines_that_go_take_their_bytes_with_them(text: str, seed: int):
    lines = lines_of(text)
    assert "".join(lines) == text
    gone = sorted(random.Random(seed).sample(range(len(lines)), random.Random(seed).randint(0, len(lines))))
    left, sizes = without(lines, gone)
    assert size(left) + sum(sizes.values()) == size(text) and set(sizes) == set(gone)
    kept = "".join(line for at, line in enumerate(lines) if at not in gone)
    # Where the end goes, no line end is left there.
    last = bool(gone) and gone[-1] == len(lines) - 1
    assert left == (kept.removesuffix("\n").removesuffix("\r") if last else kept)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("वाक्य है, जो बहुत!", ["वाक्य", "है", "जो", "बहुत"]),
        ("nai\u0308ve Na\u00efve", ["na\u00efve", "na\u00efve"]),
        ("ภาษาไทย", ["ภาษาไทย"]),
        ("שָׁלוֹם עולם", ["שָׁלוֹם", "עולם"]),
        ("他来了 42 cats", ["他", "来", "了", "42", "cats"]),
        ("snake_case don't", ["snake", "case", "don", "t"]),
    ],
)
def test_words_keep_the_marks_of_their_letters(text: str, words: list[str]):
    assert [unicodedata.normalize("NFC", word) for word in words_of(text)] == [
        unicodedata.normalize("NFC", word) for word in words
    ]
