"""Words are counted exactly, though memory holds few of them."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contexture.data.tokenizers import word_counts
from contexture.data.tokenizers.word_counts import count, merged_files, most_frequent, read, write

WORD = st.text(st.sampled_from("ab\\n\n\r\t é\ud800\U0001f600\x85\u2028"), min_size=1, max_size=3)


@given(texts=st.lists(st.lists(WORD, max_size=8), max_size=12), most=st.integers(1, 6))
def test_counts_are_exact_whatever_fits_into_memory(texts, most):
    expected = sorted(Counter(word for text in texts for word in text).items())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_counts, "MAX_WORDS", most)
        patch.setattr(word_counts, "_MOST_FILES", 2)
        assert list(count(map(str, range(len(texts))), lambda number: texts[int(number)])) == expected


@given(parts=st.lists(st.dictionaries(WORD, st.integers(1, 10**12)), min_size=1, max_size=7))
def test_files_of_counts_are_merged(tmp_path_factory, parts):
    folder: Path = tmp_path_factory.mktemp("counts")
    files = [folder / str(number) for number in range(len(parts))]
    for file, part in zip(files, parts, strict=True):
        write(file, sorted(part.items()))
        assert dict(read(file)) == part
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_counts, "_MOST_FILES", 2)
        assert dict(merged_files(files, read)) == sum(map(Counter, parts), Counter())


def test_of_words_that_were_counted_equally_the_first_are_kept():
    assert list(most_frequent([("a", 1), ("b", 3), ("c", 1), ("d", 3)], 3)) == ["b", "d", "a"]
