"""Labelled spans read from files, and what is wrong with them."""

import json
from pathlib import Path

import pytest

from contexture.analysis.probing.target_types import Target
from contexture.analysis.probing.targets import check_task, read_sentences
from contexture.data.errors import DataError

CONLLU = """# newdoc
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\t_\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\t_\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\t_\t_\t0\troot\t_\t_
3.1\tgone\t_\t_\t_\t_\t_\t_\t_\t_

1\tYes\tyes\tINTJ\t_\t_\t0\troot\t_\t_
"""
UP = """# sent_id = 1
1\tMary\tPROPN\t2\tnsubj\t_\tARG0\tARG1
2\tsaw\tVERB\t0\troot\tsee.01\tV\t_
3\tthem\tPRON\t2\tobj\t_\tARG1\t_
4\trun\tVERB\t2\txcomp\trun.02\t_\tV

1\tOh\tINTJ\t0\troot\t_
"""
GAP = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
ROW = "1\tAnn Lee, a poet, met Bo. She won.\tShe\t25\tAnn Lee\t0\tTRUE\tBo\t21\tFALSE\turl\n"
SPANS = {"text": "He was born there .", "targets": [{"span1": [0, 1], "span2": [2, 4], "label": "A1"}]}


def _read(folder: Path, name: str, text: str, task: str):
    file = folder / name
    file.write_text(text, "utf-8")
    return read_sentences(file, task)


def test_pos_is_a_tag_of_each_word(tmp_path):
    first, second = _read(tmp_path, "a.conllu", CONLLU, "pos")
    assert first.words == ("do", "n't", "go") and first.origin == f"{tmp_path}/a.conllu:3"
    assert [(t.span1, t.span2, t.labels) for t in first.targets] == [
        ((0, 1), None, ("AUX",)), ((1, 2), None, ("PART",)), ((2, 3), None, ("VERB",)),
    ]  # fmt: skip
    assert second.targets == (Target((0, 1), None, ("INTJ",)),)
    assert [t.labels for t in _read(tmp_path, "a.conll", "do A VB\nit B PRP\n", "pos")[0].targets] == [
        ("VB",),
        ("PRP",),
    ]
    assert [t.labels for t in _read(tmp_path, "a.up", UP, "pos")[0].targets][:2] == [("PROPN",), ("VERB",)]


def test_a_dependency_is_a_head_and_its_dependent(tmp_path):
    first, second = _read(tmp_path, "a.conllu", CONLLU, "dependencies")
    assert first.targets == (
        Target((2, 3), (0, 1), ("aux",)), Target((2, 3), (1, 2), ("advmod",)), Target((2, 3), (2, 3), ("root",)),
    )  # fmt: skip
    assert second.targets == (Target((0, 1), (0, 1), ("root",)),)
    assert Target((1, 2), (0, 1), ("nsubj",)) in _read(tmp_path, "a.up", UP, "dependencies")[0].targets


def test_srl_is_a_predicate_and_the_head_of_an_argument(tmp_path):
    (only,) = _read(tmp_path, "a.up", UP, "srl")
    assert only.targets == (
        Target((1, 2), (0, 1), ("ARG0",)), Target((1, 2), (2, 3), ("ARG1",)), Target((3, 4), (0, 1), ("ARG1",)),
    )  # fmt: skip
    whole = "\n".join(
        f"{c[0]}\t{c[1]}\t_\t{c[2]}\t_\t_\t{c[3]}\t{c[4]}\t_\t_\t" + "\t".join(c[5:])
        for c in (line.split("\t") for line in UP.splitlines()[1:5])
    )
    assert _read(tmp_path, "a.conllu", whole + "\n", "srl")[0].targets == only.targets


def test_sentences_without_labelled_predicates_have_no_roles(tmp_path):
    bare = "1\tOh\tINTJ\t0\troot\t\t\n\n1\tgo\tVERB\t0\troot\tgo.01\n\n1\t***\tPUNCT\t0\troot\t_\t\n\n"
    (only,) = _read(tmp_path, "a.up", bare + UP, "srl")
    assert len(only.targets) == 3


def test_real_roles_are_read(shared):
    sentences = read_sentences(shared / "data" / "srl_up_ewt" / "dev.up", "srl")
    # Of the 11,431 cells that its source counts, 1,749 are empty.
    assert sum(len(sentence.targets) for sentence in sentences) == 11431 - 1749


def test_an_entity_is_its_words_with_a_type(tmp_path):
    tagged = "Jim B-PER\nLee I-PER\nof O\nBonn I-LOC\nBonn B-LOC\nCity E-LOC\nUN S-ORG\n"
    (only,) = _read(tmp_path, "a.conll", tagged, "entities")
    assert only.targets == (
        Target((0, 2), None, ("PER",)), Target((3, 4), None, ("LOC",)), Target((4, 6), None, ("LOC",)),
        Target((6, 7), None, ("ORG",)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tags", "types"),
    [
        ("B-PER I-PER O U-LOC B-ORG M-ORG L-ORG", "PER LOC ORG"),
        ("B_PER I_PER O S_LOC B_ORG I_ORG E_ORG", "PER LOC ORG"),
        ("PER-B PER-I O LOC-B ORG-B ORG-I ORG-I", "PER LOC ORG"),
        ("B I O B B I I", "entity entity entity"),
    ],
)
def test_an_entity_is_read_in_every_form_that_is_scored(tmp_path, tags, types):
    rows = "".join(f"{word} {tag}\n" for word, tag in zip("abcdefg", tags.split(), strict=True))
    (only,) = _read(tmp_path, "a.conll", rows, "entities")
    spans = [(0, 2), (3, 4), (4, 7)]
    assert only.targets == tuple(Target(span, None, (kind,)) for span, kind in zip(spans, types.split(), strict=True))


def test_coreference_is_a_pronoun_with_each_name(tmp_path):
    (only,) = _read(tmp_path, "a.tsv", GAP + ROW, "coreference")
    assert only.words == ("Ann", "Lee", ",", "a", "poet", ",", "met", "Bo", ".", "She", "won", ".")
    assert only.targets == (Target((9, 10), (0, 2), ("coreferent",)), Target((9, 10), (7, 8), ()))


def test_objects_hold_spans_of_words(tmp_path):
    rows = [
        SPANS,
        {"words": ["a b", "c"], "targets": [{"span1": [0, 2], "span2": [0, 1], "label": ["x", "y", "x"]}], "info": 1},
        {"text": "no targets", "targets": []},
    ]
    first, second = _read(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n", "any name")
    assert first.targets == (Target((0, 1), (2, 4), ("A1",)),) and first.words[4] == "."
    assert second.words == ("a b", "c") and second.targets == (Target((0, 2), (0, 1), ("x", "y")),)


def test_compressed_files_are_read(tmp_path):
    import gzip

    file = tmp_path / "a.conllu.gz"
    file.write_bytes(gzip.compress(CONLLU.encode()))
    assert len(read_sentences(file, "pos")) == 2


def _with(**changes: object) -> str:
    return json.dumps({**SPANS, "targets": [{**SPANS["targets"][0], **changes}]}) + "\n"


WRONG = {
    "malformed": ("a.jsonl", '{"text": "a"\n', "x", ":1: not JSON ("),
    "no-object": ("a.jsonl", "[1]\n", "x", ":1: no object; give {"),
    "no-text": ("a.jsonl", '{"targets": []}\n', "x", ":1: neither text nor a list of words"),
    "empty-text": ("a.jsonl", '{"text": " ", "targets": []}\n', "x", ":1: no word in the sentence"),
    "no-list": ("a.jsonl", json.dumps(SPANS) + '\n{"text": "a"}\n', "x", ":2: no list of targets"),
    "outside": ("a.jsonl", _with(span2=[2, 6]), "x", ":1: span2 is [2, 6], outside the sentence's 5 words"),
    "before": ("a.jsonl", _with(span1=[-1, 1]), "x", ":1: span1 is [-1, 1], outside the sentence's 5 words"),
    "empty-span": ("a.jsonl", _with(span1=[3, 3]), "x", ":1: span1 is [3, 3], a span without a word"),
    "backwards": ("a.jsonl", _with(span1=[3, 1]), "x", ":1: span1 is [3, 1], outside"),
    "no-span": ("a.jsonl", _with(span1="He"), "x", ':1: span1 is "He", not [first word, word behind the last]'),
    "truth": ("a.jsonl", _with(span1=[False, True]), "x", ":1: span1 is [false, true], not [first word"),
    "no-label": ("a.jsonl", _with(label=3), "x", ":1: label is 3, not a text or a list of texts"),
    "no-target": ("a.jsonl", '{"text": "a", "targets": [1]}\n', "x", ":1: a target is no object"),
    "mixed": ("a.jsonl", json.dumps(SPANS) + "\n" + _with(span2=None), "x", ":2: a target has no span2 where others"),
    "nothing": ("a.jsonl", "\n", "x", ": no targets of x in the file; give a file that holds labelled spans"),
    "untagged": ("a.conllu", CONLLU, "srl", ": no targets of srl in the file"),
    "unknown": ("a.conllu", CONLLU, "dependenciez", "there is no task 'dependenciez' (did you mean dependencies?)"),
    "format": ("a.conllu", CONLLU, "entities", ": entities is read from *.conll, or from *.jsonl"),
    "head": ("a.conllu", CONLLU.replace("\t3\taux", "\t9\taux"), "dependencies", ":3: head '9' is no word of the"),
    "columns": ("a.up", "1\tOh\n", "pos", ":1: 2 columns, not at least 5; put tabs between them"),
    "ragged": ("a.up", UP.replace("V\t_\n", "V\n", 1), "srl", ":3: 7 columns where line 2 has 8"),
    "roles": ("a.up", UP.replace("run.02", "_"), "srl", ":2: predicates: 1, columns of roles: 2; give each predicate"),
    "tag": ("a.conll", "a B-PER\nb PER\n", "entities", ":2: 'PER' is no tag of an entity; give O, B-TYPE or I-TYPE"),
    "tags": ("a.conll", "a PER-B\nb B-PER\n", "entities", ":1: 'PER-B' is no tag of an entity; give O, B-TYPE or"),
    "gap": ("a.tsv", "a\tb\n", "coreference", ":1: no column 'Text'; give GAP's columns: Text,"),
    "gap-width": ("a.tsv", GAP + "1\t2\n", "coreference", ":2: 2 columns where the header has 11"),
    "offset": ("a.tsv", GAP + ROW.replace("\t25\t", "\t24\t"), "coreference", ":2: Pronoun is 'She' at Pronoun-offset"),
    "verdict": ("a.tsv", GAP + ROW.replace("TRUE", "yes"), "coreference", ":2: A-coref is 'YES', not TRUE or FALSE"),
    "no-utf8": ("a.jsonl", "\udcff\n", "x", ":1: not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_line(tmp_path, case):
    name, text, task, line = WRONG[case]
    (tmp_path / name).write_text(text, "utf-8", errors="surrogateescape")
    with pytest.raises(DataError) as caught:
        read_sentences(tmp_path / name, task)
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_spans_in_objects_are_read_for_a_task_of_any_name():
    check_task("anything", [Path("a.jsonl"), Path("b.jsonl.gz")])
