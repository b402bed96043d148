"""`contexture senses`: its files, its results, its page and its figures."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import contexture
from contexture.analysis.senses.occurrences import check_files, read_sentences
from contexture.analysis.senses.senses_page import write_senses_page
from contexture.cli import main as cli
from contexture.data.errors import DataError
from tests.helpers.commands import json_of
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
RUN = GOLDEN / "bert"
ROWS = [("the cat sat", "a"), ("a cat, sat", "b"), ("my cat", "a"), ("that cat </script><b> sat", "b")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "text.txt": "".join(f"{text}\n\n" for text, _ in ROWS),
        "senses.tsv": "text\tsense\n" + "".join(f"{text}\t{sense}\n" for text, sense in ROWS),
        "plain.jsonl": "".join(json.dumps({"review": text, "label": "x"}) + "\n" for text, _ in ROWS),
        "other.tsv": "a\tb\n" + "".join(f"{text}\t{sense}\n" for text, sense in ROWS),
        "empty.tsv": "text\tsense\nthe cat\ta\na cat\t\n",
        "lacks.vec": "1 2\ndog 1 2\n",
        "broken.vec": "2 2\ncat 1 2\ndog 1\n",
        "pairs.tsv": "sentence1\tsentence2\tsense\nthe cat\ta cat\tx\n",
    }.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def test_sentences_come_from_lines_and_from_columns(here: Path):
    texts, senses = zip(*ROWS, strict=True)
    lines = list(read_sentences(["text.txt"]))
    assert [(each.text, each.sense, each.origin) for each in lines] == [
        (text, None, f"text.txt:{2 * n + 1}") for n, text in enumerate(texts)
    ]
    rows = list(read_sentences(["senses.tsv"]))
    assert [each.sense for each in rows] == [*senses] and rows[1].origin == "senses.tsv:3"
    by_place = list(read_sentences(["other.tsv"], "1", "b"))
    assert [(each.text, each.sense) for each in by_place] == ROWS
    # Another label than the sense of a word is not taken for it.
    assert [(each.text, each.sense) for each in read_sentences(["plain.jsonl"])] == [(text, None) for text in texts]


def test_the_command_gives_what_the_function_does(here: Path):
    got = json_of("senses", RUN, "--word", "cat", "--input", "senses.tsv", "--adjust-anisotropy")
    texts, senses = zip(*ROWS, strict=True)
    own = contexture.open(RUN).senses("cat", [*texts], [*senses], adjust_anisotropy=True)
    assert got["layers"] == own["layers"] and got["senses"] == {"a": 2, "b": 2} and got["occurrences"] == 4
    clustered = json_of("senses", RUN, "--word", "cat", "--input", "text.txt", "--clusters", "2", "--step", "120")
    assert [row["clusters"] for row in clustered["layers"]] == [2, 2, 2] and clustered["step"] == 120
    sampled = json_of("senses", RUN, "--word", "cat", "--input", "text.txt", "--max-occurrences", "3")
    assert sampled["occurrences"] == 3 and sampled["sampled_from"] == 4


@pytest.mark.parametrize(
    ("projection", "run"),
    [
        ("pca", "bert"),
        *long(*(("pca", family) for family in ("gpt", "elmo"))),
        *long(*(("tsne", family) for family in ("bert", "gpt", "elmo"))),
    ],
)
def test_a_figure_and_a_page_are_drawn_of_every_family(here: Path, run: str, projection: str):
    common = [GOLDEN / run, "--word", "cat", "--input", "text.txt", "--projection", projection]
    json_of("senses", *common, "--to", "a.png", "--theme", "dark")
    assert (here / "a.png").read_bytes().startswith(b"\x89PNG")
    json_of("senses", *common, "--to", "a.svg", "--layers", "0,2")
    drawn = (here / "a.svg").read_text()
    assert "layer 2" in drawn and "layer 1" not in drawn and "prefers-color-scheme" in drawn
    json_of("senses", *common, "--to", "a.pdf", "--layers", "0,2", "--theme", "dark")
    assert (here / "a.pdf").read_bytes().startswith(b"%PDF")
    json_of("senses", *common, "--to", "a.html")
    title = f"cat in {run}, step {contexture.open(GOLDEN / run).step}: "
    title += {"pca": "two principal components", "tsne": "t-SNE"}[projection]
    assert f"<title>{title}</title>" in (here / "a.html").read_text()
    assert title in re.findall(r"<!-- (.*?) -->", drawn)


@pytest.mark.filterwarnings("error")
def test_a_word_that_the_figures_font_lacks_is_no_warning(here: Path):
    (here / "other.txt").write_text("猫 sat\nthe 猫\n")
    json_of("senses", RUN, "--word", "猫", "--input", "other.txt", "--to", "a.png")


def test_more_senses_than_there_are_markers_are_drawn(here: Path):
    (here / "six.tsv").write_text("text\tsense\n" + "".join(f"the cat {n} sees\tsense {n // 2}\n" for n in range(12)))
    got = json_of("senses", RUN, "--word", "cat", "--input", "six.tsv", "--to", "six.svg")
    drawn = (here / "six.svg").read_text()
    assert len(got["senses"]) == 6 and all(f"sense {n}" in drawn for n in range(6))


def _data(page: str) -> dict:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(block)


def test_a_page_holds_points_figures_and_sentences_and_text_stays_text(here: Path):
    texts, senses = zip(*ROWS, strict=True)
    own = contexture.open(RUN).senses("cat", [*texts], [*senses])
    write_senses_page(here / "page.html", "</script><!--", own)
    page = (here / "page.html").read_text()
    assert page.count("<script") == page.count("</script>") == 2 and "<!--" not in page
    assert not re.findall(r"https?://|//[a-z]+\.[a-z]+/| src=| style=", page.replace("http://www.w3.org/2000/svg", ""))
    data = _data(page)
    assert data["senses"] == ["a", "b"] and data["groups"] == [[0, 1, 0, 1]]
    assert [each["before"] + each["word"] + each["after"] for each in data["texts"]] == [*texts]
    assert {each["word"] for each in data["texts"]} == {"cat"} and data["texts"][1]["before"] == "a "
    for n, layer in enumerate(data["layers"]):
        vectors = own["vectors"][:, n].astype(np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = vectors @ vectors.T
        for place, nearest in enumerate(layer["nearest"]):
            order = sorted((m for m in range(4) if m != place), key=lambda m: -cosines[place, m])
            assert [other for other, _ in nearest] == order
            assert_close([cosine for _, cosine in nearest], cosines[place, order], atol=0.6e-4)


def test_a_word_that_is_part_of_another_is_marked_where_it_stands(here: Path):
    own = contexture.open(RUN).senses("cat", ["cats and a cat", "the cat"])
    write_senses_page(here / "page.html", "a", own)
    assert _data((here / "page.html").read_text())["texts"][0] == {"before": "cats and a ", "word": "cat", "after": ""}


def test_a_static_vector_tells_no_senses_apart(here: Path):
    (here / "vectors.vec").write_text("2 3\ncat 1 2 3\ndog 4 5 6\n")
    common = [RUN, "--word", "cat", "--input", "senses.tsv", "--static", "vectors.vec"]
    got = json_of("senses", *common, "--to", "page.html")
    assert {name: got["static"][name] for name in ("file", "word")} == {"file": "vectors.vec", "word": "cat"}
    figures = ("self_similarity", "within", "between")
    assert_close([got["static"][name] for name in figures], np.ones(3), rtol=1e-9)
    assert got["static"]["silhouette"] == 0
    data = _data((here / "page.html").read_text())
    assert [layer["name"] for layer in data["layers"]] == ["static", "words (0)", "layer 1", "layer 2"]
    assert not np.any(data["layers"][0]["points"]) and "the same in every sentence" in data["layers"][0]["note"]
    json_of("senses", *common, "--to", "a.svg")
    assert "static" in (here / "a.svg").read_text()
    upper = [*common[:2], "Cat", *common[3:], "--ignore-case"]
    assert json_of("senses", *upper)["static"]["word"] == "cat"


MISTAKES = {
    "--input text.txt --word bank": "the word 'bank' never occurs in the 4 sentences of the input; give more sentences",
    "--input text.txt --word my": "the word 'my' occurs only once, and there is nothing to compare it with, in the 4",
    "--input none.txt": "none.txt: input names no such file; check the path",
    "--input text.txt --sense s": "text.txt: --sense names a column, and each line of this file is a sentence; give",
    "--input senses.tsv --sense meaning": "senses.tsv:1: there is no column 'meaning'",
    "--input senses.tsv --text txt": "senses.tsv:1: there is no column 'txt' (did you mean 'text'?)",
    "--input other.tsv": "other.tsv:1: no column has a usual name of",
    "--input pairs.tsv": "pairs.tsv: several columns may be the text; name it with --text",
    "--input empty.tsv": "empty.tsv:3: the sense (column 'sense') is empty; fill it, or leave the row out",
    "--input senses.tsv text.txt": "text.txt:1: no sense, where others have one; give every sentence one, or none",
    "--input text.txt --to a.jpg": "--to a.jpg: a page ends in .html, a figure in .png, .svg or .pdf; give such a name",
    "--input text.txt --to no/a.png": "--to no/a.png: its folder is not there; make it, or give another name",
    "--input text.txt --layers 7 --to a.png": "layers=7 are not all, or numbers from 0 to 2 with commas between",
    "--input text.txt --clusters 1": "clusters=1 is not a number of at least 2; 0 chooses it by silhouette",
    "--input text.txt --max-occurrences 1": "max-occurrences=1 is not at least 2",
    "--input text.txt --static none.vec": "none.vec: --static names no such file; check the path",
    "--input text.txt --static text.txt": "text.txt:1: neither a header (count dim) nor a word and its numbers; give",
    "--input text.txt --static lacks.vec": "lacks.vec: none of its 1 words is 'cat'; give a file that holds it",
    "--input text.txt --static broken.vec": "broken.vec:3: 1 numbers behind the word 'dog', where 2 are expected",
    "--input text.txt --projection umap": "--projection is 'umap', not one of pca, tsne",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_clear_line(here: Path, capsys, words: str):
    before = sorted(here.iterdir())
    word = [] if "--word" in words else ["--word", "cat"]
    code = cli.main(["senses", str(RUN), *word, *words.split()])
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if "from column" not in line]
    assert code == 2 and not out and len(lines) == 1 and MISTAKES[words] in lines[0], err
    assert sorted(here.iterdir()) == before and "--task." not in err


def test_a_table_and_its_mistakes_are_looked_at_before_the_run_is_opened(here: Path):
    with pytest.raises(DataError, match="names no such file"):
        check_files(["none.tsv"], "", "")
