"""Where a text ends and what of it may be told, without a model."""

import pytest

from contexture.analysis.generate import _append_ids, _Continuation, _Ending, _settled_length
from contexture.data.tokenizers.base import Tokenizer


class Letters:
    """A token a letter; `.` ends documents."""

    end = 0
    vocabulary = ".abcdefgh\ufffd"

    def decode(self, ids):
        return "".join(self.vocabulary[number] for number in ids)


def _taken(bursts: list[str], tokens: int = 9, stop: tuple[str, ...] = ()) -> _Continuation:
    tokenizer: Tokenizer = Letters()  # pyright: ignore[reportAssignmentType]
    line = _Continuation([1, 2])
    for burst in bursts:
        if not line.stopped:
            _append_ids(line, [Letters.vocabulary.index(letter) for letter in burst], tokenizer, _Ending(tokens, stop))
    return line


@pytest.mark.parametrize(
    ("bursts", "more", "text", "why", "ids"),
    [
        (["abc", "de"], {}, "abcde", "", 5),
        (["abc", "d.efg"], {}, "abcd", "end", 4),
        ([".abc"], {}, "", "end", 0),
        (["abc", "def"], {"tokens": 5}, "abcde", "length", 5),
        (["abc", "d.e"], {"tokens": 4}, "abcd", "length", 4),
        (["abc", "def"], {"stop": ("cd",)}, "ab", "stop", 6),
        (["abc", "def"], {"stop": ("ef", "bc", "fg")}, "a", "stop", 3),
        (["abcdef"], {"stop": ("ef", "bc")}, "a", "stop", 6),
        (["abcdef"], {"stop": ("de",), "tokens": 6}, "abc", "stop", 6),
    ],
)
def test_a_text_ends_at_the_end_token_before_a_stop_text_or_at_its_length(bursts, more, text, why, ids):
    line = _taken(bursts, **more)
    assert (line.text, line.stopped, len(line.ids)) == (text, why, ids)


@pytest.mark.parametrize(
    ("text", "stop", "ready"),
    [
        ("abc", (), 3),
        ("ab\ufffd", (), 2),
        ("a\ufffdb", (), 3),
        ("abc", ("cd",), 2),
        ("abc", ("bcd",), 1),
        ("abc", ("abcd",), 0),
        ("abc", ("xyz",), 3),
        ("ab\ufffd", ("bc",), 1),
    ],
)
def test_what_may_yet_change_is_not_told(text, stop, ready):
    """A character half there, or what may become a stop text."""
    assert _settled_length(text, stop) == ready
