"""Near-duplicates are those of the true Jaccard index, as far as bands let them be seen."""

import json
import random
import sys
from pathlib import Path

import pytest

from contexture.data.cleaning.clean_parts import clean
from contexture.data.cleaning.config import CleanConfig
from contexture.data.cleaning.near_duplicates import PLACES, SHINGLE, rows_of, shingles
from contexture.data.errors import DataError


def slow_shingles(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[at : at + SHINGLE]) for at in range(max(len(words) - SHINGLE + 1, 1))}


def made(documents: int, copies: int, seed: int = 0) -> list[str]:
    """Documents of random words, some of which are edited copies of earlier ones: some words changed, dropped or moved
    to the end, so that true Jaccard indices are spread from 0.3 to 1."""
    chance = random.Random(seed)
    words = [f"word{number}" for number in range(3000)]
    texts = [chance.choices(words, k=chance.randint(60, 200)) for _ in range(documents - copies)]
    for _ in range(copies):
        text = list(chance.choice(texts[: documents - copies]))
        for _ in range(chance.randint(0, max(len(text) // 25, 1))):
            at = chance.randrange(len(text))
            match chance.choice(["change", "drop", "move"]):
                case "change":
                    text[at] = chance.choice(words)
                case "drop":
                    del text[at]
                case "move":
                    text = text[:at] + text[at + 3 :] + text[at : at + 3]
        texts.insert(chance.randint(len(texts) // 2, len(texts)), text)
    return [" ".join(text) for text in texts]


def greedy(texts: list[str], threshold: float) -> set[int]:
    """The documents that resemble an earlier one which stays, each compared with all of these."""
    sets = [slow_shingles(text) for text in texts]
    # An inverted index finds every pair with a shingle in common: it misses none.
    holders: dict[tuple[str, ...], list[int]] = {}
    gone: set[int] = set()
    for number, ours in enumerate(sets):
        others = {other for shingle in ours for other in holders.get(shingle, [])}
        if any(len(ours & sets[other]) >= threshold * len(ours | sets[other]) for other in others):
            gone.add(number)
            continue
        for shingle in ours:
            holders.setdefault(shingle, []).append(number)
    return gone


def found(texts: list[str], threshold: float, folder: Path) -> set[int]:
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = CleanConfig(input=(str(folder / "a.jsonl"),), duplicates=("near",), near_threshold=threshold)
    report = clean(config, folder / f"out{threshold}")
    lines = (folder / f"out{threshold}/text-00000.jsonl").read_text().splitlines()
    kept = [json.loads(line)["number"] - 1 for line in lines]
    for example in report["rules"]["near-duplicates"]["examples"]:
        ours, other = (slow_shingles(texts[each["number"] - 1]) for each in (example, example["doubles"]))
        assert len(ours & other) >= threshold * len(ours | other) and example["doubles"]["number"] - 1 in kept
    return set(range(len(texts))) - set(kept)


@pytest.mark.parametrize(
    ("documents", "copies", "threshold"),
    [
        (400, 80, 0.8),
        pytest.param(2000, 300, 0.8, marks=pytest.mark.long),
        pytest.param(2000, 300, 0.5, marks=pytest.mark.long),
    ],
)
def test_what_goes_resembles_what_stays(tmp_path, documents, copies, threshold):
    """By the true Jaccard index, in a corpus whose pairs are all known."""
    texts = made(documents, copies)
    true, ours = greedy(texts, threshold), found(texts, threshold, tmp_path)
    precision, recall = len(ours & true) / len(ours), len(ours & true) / len(true)
    print(
        f"{documents} documents, {len(true)} of {copies} copies at {threshold}: precision {precision}, recall {recall}"
    )
    # Who stays decides later ones, so that one miss may lead to a document that goes in vain.
    assert len(true) > copies / 4 and precision >= 0.99 and recall >= 0.99


def changed(words: list[str], places: range) -> list[str]:
    return [f"other{at}" if at in places else word for at, word in enumerate(words)]


def test_what_resembles_only_what_has_gone_stays(tmp_path):
    """And lines that only what has gone has are no first ones."""
    first = [f"word{number}" for number in range(200)]
    # Each word that is changed takes five shingles: four leave an index of 0.81, eight one of 0.66.
    second, third = changed(first, range(0, 160, 40)), changed(first, range(0, 160, 20))
    texts = [f"{' '.join(first)}", f"{' '.join(second)}\nAn own line.", f"{' '.join(third)}", "An own line.\nAnother."]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = CleanConfig(input=(str(tmp_path / "a.jsonl"),), duplicates=("near", "paragraphs"))
    report = clean(config, tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out/text-00000.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == [texts[0], texts[2], texts[3]]
    assert report["rules"]["duplicate-paragraphs"]["paragraphs"] == 0


def test_bands_find_99_of_100_pairs_at_the_threshold():
    """And a band more of places would not."""
    for threshold in (0.1, 0.5, 0.7, 0.8, 0.9, 0.99):
        seen = [1 - (1 - threshold**rows) ** (PLACES // rows) for rows in range(1, PLACES + 1)]
        rows = rows_of(threshold)
        assert seen[rows - 1] >= 0.99 or rows == 1
        assert all(each < 0.99 for each in seen[rows:])
    assert (rows_of(0.8), rows_of(0.5), rows_of(1.0)) == (6, 3, 128)


def test_shingles_are_of_words_without_punctuation():
    assert shingles("A cat: the CAT sat, on!") == {"a cat the cat sat", "cat the cat sat on"}
    assert shingles("A cat.") == {"a cat"} and shingles("… !") == {"… !"}
    # Of Chinese each character is a word.
    assert shingles("我喜歡很多書。") == {"我 喜 歡 很 多", "喜 歡 很 多 書"}


def test_without_the_library_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rensa", None)
    (tmp_path / "a.txt").write_text("A cat.")
    with pytest.raises(DataError, match=r"duplicates=near needs rensa; pip install -e '\.\[clean\]'$"):
        clean(CleanConfig(input=(str(tmp_path / "a.txt"),), duplicates=("near",)), tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]
