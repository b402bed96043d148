"""Static word vectors as a run: what is embedded are the rows of the file, tasks train heads on them as on every other
family, and what needs a language model is refused in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contexture
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tokenizers.word_level import StaticWords
from contexture.models.shapes import by_path
from tests.helpers.commands import devices, done, json_of, run_command
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, assert_differs, close

pytestmark = pytest.mark.usefixtures("one_device")
WORDS = ["the", "cat", "sat", ".", "good", "bad", "new york", "u.s."]
ROWS = np.random.default_rng(5).normal(size=(len(WORDS), 6)).round(3).astype(np.float32)
OF = dict(zip(WORDS, ROWS, strict=True))
MEAN = ROWS.astype(np.float64).mean(0)


def write_vectors(file: Path, words: list[str] = WORDS, rows: np.ndarray = ROWS) -> Path:
    lines = (" ".join([word, *map(str, row.tolist())]) for word, row in zip(words, rows, strict=True))
    file.write_text("".join(line + "\n" for line in lines), "utf-8")
    return file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static")
    done("import", "vectors", write_vectors(folder / "glove.txt"), "--to", folder / "run")
    return folder / "run"


# -------------------------------------------------------------------------------------------------------- the import


def test_words_are_the_rows_of_the_file_and_unknown_ones_their_mean(run):
    model = contexture.open(run)
    (vectors,) = model.embed(["The cat xyzzy sat."], of="tokens")
    assert_close(vectors, np.stack([OF["the"], OF["cat"], MEAN, OF["sat"], OF["."]]), rtol=1e-6)
    assert (model.run.family, model.step, model.model.config.layers) == ("vectors", 0, 0)
    (own,) = model.embed([["u.s.", "Cat", "ph"]], of="words")
    assert_close(own, np.stack([OF["u.s."], OF["cat"], MEAN]), rtol=1e-6)
    (all_layers,) = model.embed(["cat"], of="tokens", layers="all")
    assert_close(all_layers[0], vectors[1:2], rtol=0)


def test_embed_writes_means_of_words_and_counts_those_without_a_vector(run, tmp_path):
    (tmp_path / "in.txt").write_text("The cat sat.\n\nbad xyzzy qux\n")
    result = json_of("embed", run, "--input", tmp_path / "in.txt", "--to", tmp_path / "v.npy")
    to = {"to": str(tmp_path / "v.npy")}
    assert result == {**to, "lines": 3, "tokens": 7, "words": 7, "truncated": 0, "unknown": 2}
    vectors = np.load(tmp_path / "v.npy")
    means = [np.mean([OF[word] for word in ("the", "cat", "sat", ".")], 0), (OF["bad"] + 2 * MEAN) / 3]
    assert_close(vectors[[0, 2]], np.stack(means), rtol=1e-5, atol=1e-6)
    assert not vectors[1].any()


def test_words_are_looked_up_in_lower_case_where_the_file_has_no_capital(run, tmp_path, caplog):
    assert contexture.open(run).run.data.lowercase
    cased = write_vectors(tmp_path / "cased.txt", ["The", "cat", "the"], ROWS[:3])
    with caplog.at_level("INFO"):
        contexture.import_model("vectors", cased, tmp_path / "cased")
        contexture.import_model("vectors", cased, tmp_path / "lower", lowercase=True)
    assert "3 words of 6 numbers (text), looked up as written; a word without a vector has the mean of" in caplog.text
    assert "1 words have capitals, which --lowercase yes never asks for" in caplog.text
    (as_written,) = contexture.open(tmp_path / "cased").embed(["The CAT the"], of="tokens")
    assert_close(as_written, np.stack([ROWS[0], ROWS[:3].astype(float).mean(0), ROWS[2]]), rtol=1e-6)
    (lower,) = contexture.open(tmp_path / "lower").embed(["The CAT the"], of="tokens")
    assert_close(lower, ROWS[[2, 1, 2]], rtol=0)


def test_a_files_own_unknown_word_stands_for_all(tmp_path):
    file = write_vectors(tmp_path / "v.txt", ["<unk>", "cat"], ROWS[:2])
    contexture.import_model("vectors", file, tmp_path / "run", word_splitter="spaces")
    (vectors,) = contexture.open(tmp_path / "run").embed(["cat, cat"], of="tokens")
    assert_close(vectors, ROWS[[0, 1]], rtol=0)


def test_the_mean_of_large_numbers_is_finite(tmp_path):
    file = tmp_path / "large.txt"
    file.write_text("".join(f"w{n} 3e38 -3e38\n" for n in range(4)))
    contexture.import_model("vectors", file, tmp_path / "run")
    close(contexture.open(tmp_path / "run").embed("nowhere", of="words"), np.array([[3e38, -3e38]], np.float32))


def test_a_text_that_spells_a_special_row_is_a_word_like_others():
    words = StaticWords(["cat", "<pad>"], "spaces")
    assert words.encode("<pad> <unk> cat") == [3, 1, 2] and words.decode([0, 1, 2]) == "<pad> <unk> cat"


def test_offsets_are_the_places_of_words_also_in_lower_case():
    words = StaticWords(["i̇stanbul", "cat"], "punctuation", True)
    ((ids, places),) = words.encode_with_offsets(["İstanbul: Cat"])
    assert ids == [2, 1, 3] and ["İstanbul: Cat"[a:b] for a, b in places] == ["İstanbul", ":", "Cat"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("import vectors {d}/none --to {d}/new", "none: cannot be read (No such file or directory)"),
        ("import vectors {d} --to {d}/new", ": a folder; give the file of word vectors"),
        ("import vectors {d}/ragged.txt --to {d}/new", "ragged.txt:2: 1 numbers behind the word 'b'"),
        ("import vectors {d}/ragged.txt --to {d}/new --gelu tanh", "--gelu has no meaning for vectors"),
        ("import vectors {d}/ragged.txt --to {d}/new --vocabulary v", "--vocabulary has no meaning for vectors"),
        ("pretrain bert.tiny --init.run {r} --dir {d}/new --data.path {d}/text.txt", "a run of the family vectors"),
        ("pretrain {d}/mine.py:big --dir {d}/new --data.path {d}/text.txt", "static vectors are imported"),
        ("fill {r} --text [MASK]", "not static vectors, which predict no word"),
        ("evaluate {r}", "has static vectors and no task; train them for one: contexture finetune"),
        ("generate {r} --prompt the", "only a GPT writes on from a prompt"),
        ("score {r} --input {d}/text.txt", "a model of the family vectors predicts no word, so"),
        ("zeroshot {r} --task lambada --input {d}/text.txt", "a model of the family vectors predicts no word, so"),
        ("attention {r} --text cat --to {d}/page.html", "a model of the family vectors has no attention; give"),
        ("export {r} hf --to {d}/new", "transformers has no table of static word vectors; export it as stablehlo"),
        ("finetune {r} {t} --optim.lora-rank 2", "adapts kernels, and the family vectors has none"),
        ("finetune {r} {t} --head.mix last-four", "reads 4 layers, and the model has 0"),
        ("finetune {r} {t} --optim.frozen-layers 1", "optim.frozen-layers=1 is more than the model's 0 layers"),
        ("finetune {r} {t} --model.layers 2", "--model.layers"),
        ("finetune {r} {t} --init.redraw-layers 1", "init.redraw-layers=1 is more than the model's 0 layers"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(run, tmp_path, capsys, words, line):
    (tmp_path / "text.txt").write_text("The cat sat.\n")
    (tmp_path / "ragged.txt").write_text("a 0.5 1.5\nb 0.5\nc 0.5 1.5\n")
    (tmp_path / "train.tsv").write_text("text\tlabel\nthe cat\ta\ngood\tb\n")
    (tmp_path / "mine.py").write_text(
        "from contexture.models.config import VectorsConfig\nfrom contexture.train.settings.run import Run\n\n\n"
        "def big():\n    return Run(model=VectorsConfig(vocab=10, hidden=4), steps=3)\n"
    )
    task = f"--task.kind classify --task.train {tmp_path}/train.tsv --dir {tmp_path}/new --steps 1"
    code, err = run_command(capsys, *words.format(d=tmp_path, r=run, t=task).split())
    assert code == 2 and line in err.splitlines()[-1], err
    assert "unexpected" not in err and not (tmp_path / "new" / "checkpoints" / "1").exists()


# ------------------------------------------------------------------------------------------------------------ tasks

TEXTS = [("the cat good .", "pos"), ("good cat sat", "pos"), ("the good", "pos"), ("bad cat", "neg"),
         ("the bad sat .", "neg"), ("bad xyzzy", "neg")]  # fmt: skip
TAGGED = "1\tThe\t_\tDET\n2\tcat\t_\tNOUN\n\n1\tgood\t_\tADJ\n2\txyzzy\t_\tNOUN\n\n"
UNKNOWN = {"classify": 1 / 17, "regress": 1 / 28, "tag": 1 / 4, "choice": 0.0, "span": 4 / 13}
"""The share of a file's words without a vector: "xyzzy", and of questions "A" and twice "who"."""
FEW = ("--steps", 4, "--data.batch", 2, "--head.cells", 3)


def _files(folder: Path) -> dict[str, tuple[str, ...]]:
    """The options of a task of each kind, with files of its own."""

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    pairs = zip(TEXTS, TEXTS[1:], strict=False)
    write("t.jsonl", [{"text": text, "label": label} for text, label in TEXTS])
    write("r.jsonl", [{"text": a, "second": b, "label": n / 2} for n, ((a, _), (b, _)) in enumerate(pairs)])
    tagged = (line + "\t_" * 6 if line else "" for line in TAGGED.split("\n")[:-1])
    (folder / "g.conllu").write_text("".join(line + "\n" for line in tagged))
    write("c.jsonl", [{"text": "the cat", "choices": ["sat .", "good bad"], "label": 0},
                      {"text": "bad", "choices": ["good", "sat"], "label": 1}])  # fmt: skip
    write("s.jsonl", [{"id": text, "question": "who sat", "context": context,
                       "answers": {"text": [text], "answer_start": [context.index(text)]}}
                      for context, text in (("The cat sat.", "cat"), ("A good xyzzy sat.", "xyzzy"))])  # fmt: skip
    options: dict[str, Any] = {
        "classify": ("t.jsonl", ()),
        "regress": ("r.jsonl", ("--task.second", "second")),
        "tag": ("g.conllu", ("--task.text", "form", "--task.label", "upos", "--head.crf")),
        "choice": ("c.jsonl", ()),
        "span": ("s.jsonl", ("--data.length", "24")),
    }
    return {
        kind: ("--task.kind", kind, "--task.train", str(folder / file), *more) for kind, (file, more) in options.items()
    }


@pytest.mark.parametrize("kind", ["tag", *long("classify", "regress", "choice", "span")])
def test_every_kind_of_task_is_learned_evaluated_and_answered(run, tmp_path, kind):
    words = _files(tmp_path)[kind]
    done("finetune", run, *words, *FEW, "--dir", tmp_path / "task")
    file = words[3]
    result = json_of("evaluate", tmp_path / "task", "--task.dev", file)
    assert np.isfinite(result["metrics"]["loss"]) and result["unknown"] == UNKNOWN[kind]
    json_of("predict", tmp_path / "task", "--input", file, "--to", tmp_path / "p.jsonl")
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == result["examples"]
    before, after = (contexture.load(folder)[1] for folder in (run, tmp_path / "task"))
    assert_differs(by_path(after)["backbone/embeddings/tokens"], by_path(before)["backbone/embeddings/tokens"])


@pytest.mark.long
def test_frozen_vectors_stay_and_their_task_is_that_of_all_steps(run, tmp_path):
    """Stored features and the backbone itself give the same parameters, and resuming goes on to the same."""
    words = ("finetune", run, *_files(tmp_path)["classify"], *FEW, "--optim.frozen", "backbone")
    done(*words, "--dir", tmp_path / "stored")
    done(*words, "--dir", tmp_path / "computed", "--data.features", "off")
    one, other, own = (by_path(contexture.load(f)[1]) for f in (tmp_path / "stored", tmp_path / "computed", run))
    assert np.array_equal(one["backbone/embeddings/tokens"], own["backbone/embeddings/tokens"])
    assert all(np.array_equal(one[path], other[path]) for path in one)


@pytest.mark.long
def test_a_run_that_was_stopped_resumes_and_a_mesh_changes_nothing(run, tmp_path):
    words = ("finetune", run, *_files(tmp_path)["regress"], "--data.batch", 4, "--head.cells", 3)
    done(*words, "--steps", 4, "--dir", tmp_path / "whole")
    done(*words, "--steps", 2, "--dir", tmp_path / "parts", "--optim.decay-steps", 4)
    done(*words, "--steps", 4, "--dir", tmp_path / "parts", "--optim.decay-steps", 4)
    with devices(4):
        done(*words, "--steps", 4, "--dir", tmp_path / "mesh", "--mesh.data", 1, "--mesh.fsdp", 2, "--mesh.tensor", 2)
    whole, parts, mesh = (by_path(contexture.load(tmp_path / name)[1]) for name in ("whole", "parts", "mesh"))
    assert all(np.array_equal(whole[path], parts[path]) for path in whole)
    for path, x in whole.items():
        if path.endswith("mix/weights"):  # the one weight of a mix of one layer is never moved
            assert not x.any() and not mesh[path].any()
        else:
            assert_close(mesh[path], x, rtol=1e-4, atol=1e-6, err_msg=path)


def test_pairs_are_two_sequences_of_words_and_alternatives_one(tmp_path):
    from contexture.data.config import DataConfig, TaskConfig
    from contexture.data.packing import apart
    from contexture.data.tasks.encode.encode_examples import encode

    files, words = _files(tmp_path), StaticWords(["the", "cat", "sat", "good", "bad", "."])
    config = DataConfig(length=16)
    pairs = encode(TaskConfig(kind="regress", train=(files["regress"][3],), second="second"), words, tmp_path / "a")
    batch = apart(HeldOutTask(pairs.splits["train"], words, config, 2, family="vectors").read(0))
    # Two places fewer than data.length has, as an ELMo's.
    assert batch["tokens"].shape == (2, 2, 6)
    assert batch["tokens"][0].tolist() == [[2, 3, 5, 7, 0, 0], [5, 3, 4, 0, 0, 0]]
    assert batch["mask"][0].sum(1).tolist() == [4, 3]
    choice = encode(TaskConfig(kind="choice", train=(files["choice"][3],)), words, tmp_path / "c")
    batch = apart(HeldOutTask(choice.splits["train"], words, config, 2, family="vectors").read(0))
    assert batch["tokens"][0].tolist() == [[2, 3, 4, 7, 0, 0], [2, 3, 5, 6, 0, 0]]


@pytest.mark.long
def test_neighbours_similarity_and_probes_read_them(run, tmp_path):
    (tmp_path / "in.txt").write_text("cat sat\ngood bad\n")
    found = json_of("neighbours", run, "--input", tmp_path / "in.txt", "--text", "cat sat")
    assert found["queries"][0]["neighbours"][0]["line"] == 1
    (tmp_path / "sts.tsv").write_text("text\tsecond\tlabel\ncat\tsat\t1.0\ngood\tgood\t5.0\nbad\tcat\t2.0\n")
    figures = json_of("similarity", run, "--input", tmp_path / "sts.tsv", "--second", "second")
    assert np.isfinite(figures["spearman"])
    words = _files(tmp_path)["tag"]
    probe = json_of(
        "probe", run, "--task", "pos", "--train", words[3], "--dev", words[3], "--to", tmp_path / "probe", "--epochs", 2
    )
    assert probe["probes"][0]["centre_of_gravity"] == 0
