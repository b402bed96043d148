"""Documents that hold texts of benchmarks go, and no others."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contexture.data.cleaning.clean_parts import clean
from contexture.data.cleaning.config import CleanConfig
from contexture.data.cleaning.contamination import SHORTEST, Benchmarks, texts_of
from contexture.data.errors import DataError

WORDS = st.lists(st.sampled_from("a b c d e".split()), min_size=1, max_size=30)


def common(text: list[str], benchmark: list[str], n: int) -> bool:
    """Whether texts have an n-gram in common, of fewer words where the benchmark's is shorter."""
    n = min(n, len(benchmark))
    if n < min(SHORTEST, n if n == len(text) else SHORTEST) or n > len(text):
        return False
    grams = [benchmark[at : at + n] for at in range(len(benchmark) - n + 1)]
    return any(text[at : at + n] in grams for at in range(len(text) - n + 1))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    benchmark=st.lists(WORDS, min_size=1, max_size=3), text=WORDS, n=st.sampled_from([8, 9, 13]), planted=st.booleans()
)
def test_a_document_goes_where_an_n_gram_is_in_common(tmp_path_factory, benchmark, text, n, planted):
    file = tmp_path_factory.mktemp("task") / "test.txt"
    benchmark = [*benchmark, [f"own{at}" for at in range(SHORTEST)]]
    file.write_text("\n".join(" ".join(words) for words in benchmark))
    if planted:
        words = random.Random(len(text)).choice(benchmark)
        text = [*text, *words[: random.Random(n).randint(5, 20)], "a"]
    # Case and punctuation tell nothing apart.
    found = Benchmarks([str(file)], n).found_in(" -- ".join(text).upper() + "!")
    assert (found is not None) == any(len(words) >= SHORTEST and common(text, words, n) for words in benchmark)
    if found:
        assert found[0] in " ".join(text) and found[1] == "test.txt"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "sentence\tlabel\n{}\tyes\n"),
        ("a.csv", 'label,sentence\nyes,"{}"\n'),
        ("a.jsonl", '{{"premise": "{}", "label": 1}}\n'),
        ("a.json", '[{{"choices": ["no", "{}"]}}]'),
        ("squad.json", '{{"data": [{{"paragraphs": [{{"context": "{}", "qas": [{{"id": "1", "question": "What?",'
                       ' "answers": []}}]}}]}}]}}'),
        ("a.txt", "a line\n{}\n"),
        ("a.conllu", None),
    ],
)  # fmt: skip
def test_any_text_column_of_a_task_is_read(tmp_path: Path, name: str, content: str | None):
    text = "The quick brown fox jumps over the lazy dog again and again until it is night"
    if content is None:
        content = (
            "".join(f"{at}\t{word}\t_\tNOUN\t_\t_\t0\troot\t_\t_\n" for at, word in enumerate(text.split(), 1)) + "\n"
        )
    (tmp_path / name).write_text(content.format(text))
    assert text in texts_of(str(tmp_path / name))
    found = Benchmarks([str(tmp_path / name)], 13).found_in(f"He said: {text.upper()}.")
    assert found and found[0].startswith("the quick brown fox") and found[1] == name


def test_planted_test_sets_are_found_and_nothing_else(tmp_path: Path, shared: Path):
    """Real tasks in real text: every document with a planted row goes, and no other one."""
    data = shared / "data"
    files = [data / "cls_banking77" / "test.csv", data / "qa_xquad" / "xquad.en.dev12.json"]
    lines = (data / "pretrain_books" / "treasure-island.txt").read_text("utf-8").splitlines()
    chance = random.Random(0)
    rows = [text for file in files for text in texts_of(str(file)) if len(text.split()) >= 15]
    documents = [line for line in lines if len(line.split()) > 5][:400]
    planted = sorted(chance.sample(range(len(documents)), 40))
    for at in planted:
        documents[at] += f" {chance.choice(rows).lower()} And so on."
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    config = CleanConfig(input=(str(tmp_path / "a.jsonl"),), decontaminate=tuple(map(str, files)))
    report = clean(config, tmp_path / "out")
    lines = (tmp_path / "out/text-00000.jsonl").read_text("utf-8").splitlines()
    kept = [json.loads(line)["number"] - 1 for line in lines]
    assert sorted(set(range(len(documents))) - set(kept)) == planted
    assert {example["text"].split(":")[0] for example in report["rules"]["decontaminate"]["examples"]} <= {
        file.name for file in files
    }


def test_a_file_without_texts_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("A cat sat on the mat, and a dog.\n")
    (tmp_path / "b.tsv").write_text("text\tlabel\ntoo short\tyes\n")
    text = (str(tmp_path / "a.txt"),)
    for file, line in (
        ("b.tsv", r"b.tsv: decontaminate= finds no text of 8 words in it; give its texts"),
        ("c.tsv", r"c.tsv: decontaminate names no such file; check the path"),
        ("d.txt", r"d.txt: decontaminate names no such file or folder; check the path"),
    ):
        with pytest.raises(DataError, match=line):
            clean(CleanConfig(input=text, decontaminate=(str(tmp_path / file),)), tmp_path / "out")
    # Itself is its own benchmark.
    with pytest.raises(DataError, match=r"of 1 documents none is left \(decontaminate took 1\)"):
        clean(CleanConfig(input=text, decontaminate=text), tmp_path / "out")
