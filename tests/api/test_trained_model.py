"""`contexture.open`: a model that stays loaded gives what the commands give, for one text or several."""

import dataclasses
import inspect
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import contexture
from contexture.analysis import call_arguments
from contexture.analysis.neighbours.sentence_vectors import sentence_vectors
from contexture.analysis.options import EmbedOptions, GenerateOptions, SensesOptions, VectorOptions
from contexture.analysis.trained_model import TrainedModel
from contexture.data.errors import DataError
from contexture.data.layouts import text_batch
from tests.conftest import ROOT
from tests.helpers.commands import done, json_of
from tests.helpers.logs import logged
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, close

GOLDEN = ROOT / "tests" / "golden"
FAMILIES = {"bert": "bert", "gpt": "gpt", "elmo": "elmo"}
TEXTS = ["the cat sees the river .", "my brother likes the moon and the sea .", "the"]


@pytest.fixture(scope="module")
def models(one_device) -> dict[str, contexture.TrainedModel]:
    return {family: contexture.open(GOLDEN / name) for family, name in FAMILIES.items()}


@pytest.mark.parametrize("family", ["bert", *long("gpt", "elmo")])
def test_sentence_vectors_are_one_matrix(models, family, tmp_path):
    model = models[family]
    vectors = model.embed(TEXTS)
    assert vectors.shape == (3, model.model.config.width) and vectors.dtype == np.float32
    close(model.embed(TEXTS[1]), vectors[1])
    (tmp_path / "t.txt").write_text("\n".join(TEXTS) + "\n")
    done("embed", model.folder, "--input", tmp_path / "t.txt", "--to", tmp_path / "v.npy")
    close(vectors, np.load(tmp_path / "v.npy"))
    layers = model.model.config.layers
    every = model.embed(TEXTS, layers="all")
    assert every.shape == (3, layers + 1, vectors.shape[1])
    close(every[:, -1], vectors)
    for asked, same in ((-1, every[:, -1]), (0, every[:, 0]), ([0, -1], every[:, [0, layers]]), ("0,1", every[:, :2])):
        close(model.embed(TEXTS, layers=asked), same)


@pytest.mark.parametrize("family", ["bert", *long("gpt", "elmo")])
def test_words_have_the_mean_of_their_pieces(models, family):
    model = models[family]
    words = [["the", "river"], [], ["moon"]]
    vectors = model.embed(words, of="words")
    assert [array.shape for array in vectors] == [(n, model.model.config.width) for n in (2, 0, 1)]
    close(model.embed("the river", of="words"), vectors[0])
    tokens = model.embed("the river", of="tokens")
    if family == "elmo":
        close(tokens, vectors[0])
        return
    ids = model.tokenizer.encode(["the", " river" if model.tokenizer.lossless else "river"])
    first, own = len(ids[0]), tokens[1:-1] if family == "bert" else tokens
    close(own[:first].mean(0), vectors[0][0])
    close(own[first:].mean(0), vectors[0][1])
    every = model.embed("the river", of="words", layers="all")
    assert every.shape == (model.model.config.layers + 1, *vectors[0].shape)
    close(every[-1], vectors[0])


def test_similarity_is_the_cosine(models):
    model = models["bert"]
    a = model.embed(TEXTS)
    cosines = (a @ a.T) / np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(a, axis=1))
    close(model.similarity(TEXTS, TEXTS), cosines, tolerance=1e-5)
    close(model.similarity(TEXTS[0], TEXTS), cosines[0], tolerance=1e-5)
    assert model.similarity(TEXTS[0], TEXTS[1]) == pytest.approx(cosines[0, 1], abs=1e-5)
    assert model.similarity("", TEXTS[0]) == 0.0


@pytest.mark.parametrize(
    ("family", "call"),
    [
        ("bert", lambda m, words: m.embed([words] * 3)),
        ("bert", lambda m, words: m.embed([words] * 3, of="words")),
        ("bert", lambda m, words: m.similarity([words, "the"], words)),
        ("bert", lambda m, words: m.fill([f"{words} [MASK]"] * 2)),
        ("bert", lambda m, words: m.attention(words)),
        ("bert", lambda m, words: m.senses("the", [words, f"{words} ."])),
        ("bert", lambda m, words: next(sentence_vectors(m, [words], VectorOptions()))),
        ("gpt", lambda m, words: m.generate([words] * 2, tokens=1)),
    ],
)
def test_positions_that_were_never_trained_are_said_once_in_a_call(models, family, call, monkeypatch):
    model = models[family]
    for trained, expected in ((8, 1), (24, 0)):
        monkeypatch.setitem(model.__dict__, "trained_length", trained)
        with logged() as lines:
            call(model, "the cat sees the river . the cat")
        assert len([line for line in lines if "trained on sequences of at most 8 tokens" in line]) == expected


def test_words_of_an_elmo_that_are_cut_are_said(models):
    with logged() as lines:
        models["elmo"].embed(["a" * 60, "the"])
    assert lines == ["warning: truncated words of 1 of 2 texts: only their first 48 bytes are read"]


def test_text_is_generated_whole_and_streamed_alike(models):
    model = models["gpt"]
    one = model.generate("my brother", tokens=12, seed=3)
    assert isinstance(one, dict) and one["prompt"] == "my brother"
    assert "".join(model.stream("my brother", tokens=12, seed=3)) == one["text"]
    assert model.generate(["my brother", "the"], tokens=12, seed=3)[0]["text"] == one["text"]
    mesh = jax.sharding.get_abstract_mesh()
    parts = model.stream("my brother", tokens=12, seed=3)
    next(parts)
    assert jax.sharding.get_abstract_mesh() == mesh  # between two parts the caller's own mesh is set
    assert model.score(TEXTS)["documents"] == 3


def test_masks_of_one_text_and_of_several(models):
    model = models["bert"]
    one = model.fill("the [MASK] sees [MASK] .", top=3)
    several = model.fill(["the [MASK] sees [MASK] .", "[MASK]"], top=3)
    assert [len(mask) for mask in one] == [3, 3] and several[0] == one and len(several[1]) == 1


def test_the_command_fills_the_masks_of_the_text_that_it_prints(models):
    model, text = models["bert"], "the [MASK] sat"
    assert json_of("fill", model.folder, "--text", text, "--top", 2) == {"text": text, "masks": model.fill(text, top=2)}


def test_a_model_is_trained_on_by_the_function_that_it_was_opened_with():
    def trains(*words: Any, **options: Any) -> Any:
        return words, options

    model: Any = TrainedModel(GOLDEN / "bert", finetune=trains)
    assert model.finetune("tag", dir="new") == ((GOLDEN / "bert", "tag"), {"dir": "new"})
    assert model.finetune() == ((GOLDEN / "bert", "classify"), {})


def test_predictions_of_texts_pairs_dicts_and_columns(one_device):
    model = contexture.open(GOLDEN / "bert_classify")
    texts = ["the cat sees a red house", "my brother paints"]
    expected = model.predict(texts)
    assert model.predict(texts[0])["prediction"] == expected[0]["prediction"]
    for given in ({"text": texts}, [{"text": text} for text in texts], np.array(texts), iter(texts), tuple(texts)):
        assert [each["prediction"] for each in model.predict(given)] == [each["prediction"] for each in expected]
    assert model.predict([]) == []
    tagger = contexture.open(GOLDEN / "elmo_tag")
    (words,) = tagger.predict([{"words": ["the", "cat"]}])
    assert words["predictions"] == tagger.predict([["the", "cat"]])[0]["predictions"]


class Column:
    """A column as pandas, polars and Arrow have it, by the method that each has."""

    def __init__(self, method: str, values: list[Any]) -> None:
        setattr(self, method, lambda: values)


class Rows:
    """As a Dataset of Hugging Face."""

    column_names = ("text", "label")


class Frame:
    columns = ("text", "label")

    def to_dict(self, orient: str) -> list[dict[str, str]]:
        assert orient == "records"
        return [{"text": text, "label": "x"} for text in TEXTS]


@pytest.mark.parametrize("method", ["tolist", "to_list", "to_pylist", "to_dicts"])
def test_columns_of_other_libraries_are_lists(models, method):
    close(models["elmo"].embed(Column(method, TEXTS)), models["elmo"].embed(TEXTS))


def test_columns_of_the_real_libraries_are_lists(models):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    arrow = pytest.importorskip("pyarrow")
    expected = models["elmo"].embed(TEXTS)
    for column in (pandas.Series(TEXTS), polars.Series(TEXTS), arrow.array(TEXTS), arrow.chunked_array([TEXTS])):
        close(models["elmo"].embed(column), expected)
    model, table = contexture.open(GOLDEN / "bert_classify"), {"text": TEXTS}
    answers = [each["prediction"] for each in model.predict(TEXTS)]
    for frame in (pandas.DataFrame(table), polars.DataFrame(table), arrow.table(table)):
        assert [each["prediction"] for each in model.predict(frame)] == answers


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda m: m["bert"].embed(3), "texts: '3' is no list, column or table; give a list, also of one"),
        (lambda m: m["bert"].embed(["a", 3]), "text 1: '3' is no text; give strings"),
        (lambda m: m["bert"].embed("a", of="pages"), "of='pages' is not one of sentences, words, tokens"),
        (lambda m: m["bert"].embed("a", layers=9), "layers=9 are not all, last, or numbers from 0 to"),
        (lambda m: m["bert"].embed("a", layers=[]), "layers=[] are not all, last"),
        (lambda m: m["gpt"].embed("a", pool="cls"), "pool=cls is not one of"),
        (lambda m: m["bert"].embed([3], of="words"), "text 0: '3' is neither a text nor a list of words"),
        (lambda m: m["bert"].embed("the " * 99, of="words"), "text 0: 101 tokens, and the model takes"),
        (lambda m: m["bert"].similarity("a", "b", layers="all"), "layers=all are several vectors of a text"),
        (lambda m: m["bert"].fill("nothing"), "the text has no [MASK]"),
        (lambda m: m["bert"].generate("a"), "only a GPT writes on from a prompt"),
        (lambda m: m["bert"].stream("a"), "only a GPT writes on from a prompt"),
        (lambda m: m["bert"].score("a", stride=99), "stride=99 is not between 1 and"),
        (lambda m: m["gpt"].generate("a", top_p=2), "top-p=2 is not above 0 and at most 1"),
        (lambda m: m["gpt"].fill("[MASK]"), "only a BERT fills gaps"),
        (lambda m: m["bert"].embed({"text": "one"}), "a dict stands for columns, each a list"),
        (lambda m: m["bert"].embed({"a": ["b"], "c": []}), "the columns differ in length: 'a' has 1, 'c' has 0"),
        (
            lambda m: m["bert"].embed(["a", "a \ud800"]),
            "text 1: half a character, U+D800, at place 2; give text in UTF-8",
        ),
        (lambda m: m["gpt"].similarity("a", "\ud800"), "text 1: half a character, U+D800, at place 0"),
        (lambda m: m["elmo"].embed("\ud800"), "text 0: half a character, U+D800, at place 0"),
        (lambda m: m["elmo"].embed([["a", "\ud800"]], of="words"), "text 0: half a character, U+D800, at place 2"),
        (lambda m: m["elmo"].score("a \ud800"), "document 0: half a character, U+D800, at place 2"),
        (
            lambda m: next(sentence_vectors(m["bert"], ["\ud800"], VectorOptions())),
            "the text: half a character, U+D800",
        ),
        (lambda m: m["bert"].predict("a"), "was pretrained and not fine-tuned for a task"),
        (
            lambda m: m["bert"].embed("a", of="words", pool="mean"),
            "pool='mean' is for sentences, and has no meaning for",
        ),
    ],
)
def test_mistakes_are_one_clear_line(models, call, line):
    with pytest.raises((DataError, contexture.ConfigError)) as caught:
        call(models)
    assert line in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("call", "error", "line"),
    [
        (lambda m: m.embed("a", pooling="cls"), TypeError, "no argument 'pooling' (did you mean pool?); it has texts,"),
        (lambda m: m.embed("a", batch_size=2), TypeError, "no argument 'batch_size' (did you mean batch?)"),
        (lambda m: m.fill("[MASK]", top_k=2), TypeError, "no argument 'top_k' (did you mean top?)"),
        (lambda m: m.generate("a", max_new_tokens=2), TypeError, "'max_new_tokens' (did you mean tokens?)"),
        (lambda m: contexture.finetune(m.folder, **{"train_dataset": [], "dir": "x"}), TypeError, "mean train?)"),
        (lambda m: m.encode("a"), AttributeError, "no attribute 'encode'; embed(texts) gives vectors, tokenizer.enc"),
        (lambda m: m.scores("a"), AttributeError, "no attribute 'scores' (did you mean score?)"),
        (lambda m: m.embed({"train": Rows(), "test": Rows()}), DataError,
         "texts: a dict of data sets (train, test); give one of them, as data['train']"),
    ],
)  # fmt: skip
def test_names_of_other_libraries_are_told_by_their_names_here(models, call, error, line):
    with pytest.raises(error) as caught:
        call(models["bert"])
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "name", [FAMILIES["gpt"], "elmo_tag", *long(FAMILIES["bert"], FAMILIES["elmo"], "bert_classify")]
)
def test_what_loads_documentation_shows_works_on_every_kind_of_run(name):
    model, params, tokenizer = contexture.load(GOLDEN / name)
    batch = text_batch(tokenizer, ["the cat sat .", "it slept ."])
    forward: Any = jax.jit(partial(model.apply, only=()))
    hidden_BLD = forward({"params": params}, batch).encoding.hidden_BLD
    assert hidden_BLD.shape == (2, next(iter(batch["mask"].shape[1:])), model.config.width)
    one = text_batch(tokenizer, ["it slept ."])
    alone = forward({"params": params}, one).encoding.hidden_BLD
    length = int(one["mask"].sum())
    assert_close(alone[0, :length], hidden_BLD[1, :length], atol=1e-5)


def test_one_text_is_encoded_like_several(models):
    for model in models.values():
        (ids,) = model.tokenizer.encode(["the river"])
        assert model.tokenizer.encode("the river") == ids


CALLS = """
import json, logging, os, signal, sys, threading, warnings
import jax
import contexture
from contexture.models import model as _

def state():
    config = {name: str(value) for name, value in jax.config.values.items()}
    loggers = {name: logging.getLogger(name).level for name in ("", "absl", "orbax", "asyncio", "jax", "contexture")}
    hooks = [id(sys.excepthook), id(sys.unraisablehook), id(threading.excepthook)]
    signals = [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    import resource
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    return json.dumps([config, loggers, hooks, signals, len(logging.getLogger().handlers), dict(os.environ), limits])

run, task, to = sys.argv[1:]
import orbax.checkpoint, flax.linen, sklearn.metrics, contexture.analysis.trained_model  # theirs
before = state()
model = contexture.open(run)
model.embed(["a", "b"])
model.fill("the [MASK]")
contexture.predict(task, ["the cat"])
contexture.evaluate(task, dev=[("the cat", "animal")], to=to)
contexture.export_model(run, "hf", to + "/hf")
contexture.import_model("hf", to + "/hf", to + "/run")
after = state()
for a, b in zip(json.loads(before), json.loads(after)):
    assert a == b, (a, b)
print("unchanged")
"""


@pytest.mark.long
def test_calls_change_nothing_in_the_callers_process(environment, tmp_path: Path):
    import subprocess

    runs = [str(GOLDEN / name) for name in ("bert", "bert_classify")]
    command = [sys.executable, "-c", CALLS, *runs, str(tmp_path / "to")]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment(1), cwd=ROOT, check=False)
    assert finished.stdout.strip() == "unchanged", finished.stderr[-3000:]


def test_what_is_written_by_a_command_is_that_of_the_open_model(models, tmp_path):
    text = models["gpt"].generate("the", tokens=5)
    (written,) = json_of("generate", models["gpt"].folder, "--prompt", "the", "--tokens", 5)["texts"]
    assert json.loads(json.dumps(text)) == written


def test_a_run_is_opened_and_imported_whatever_jax_is_set_to(models, tmp_path):
    """Its digests are those of float32 arrays, also where jax would make float64 ones."""
    with jax.enable_x64(True), jax.threefry_partitionable(False):
        opened = contexture.open(models["gpt"].folder)
        contexture.export_model(models["bert"].folder, "hf", tmp_path / "hf")
        contexture.import_model("hf", tmp_path / "hf", tmp_path / "run")
    close(opened.embed("the cat"), models["gpt"].embed("the cat"), tolerance=0.0)
    close(contexture.open(tmp_path / "run").embed("the cat"), models["bert"].embed("the cat"), tolerance=0.0)


def test_every_argument_with_other_names_is_one_of_a_function_here():
    own = [getattr(contexture, name) for name in contexture._FUNCTIONS]
    own += [each for name, each in vars(TrainedModel).items() if callable(each) and not name.startswith("_")]
    known = {name for function in own for name in inspect.signature(function).parameters}
    assert known >= call_arguments._OTHER_NAMES.keys()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (TrainedModel.generate, GenerateOptions),
        (TrainedModel.stream, GenerateOptions),
        (TrainedModel.senses, SensesOptions),
        (TrainedModel.embed, EmbedOptions),
    ],
)
def test_an_argument_has_the_default_of_its_option(method, options):
    """So the command line and Python give the same; layers and pool of embed depend on what has a vector."""
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    own = {name: each.default for name, each in inspect.signature(method).parameters.items()}
    common = (own.keys() & defaults.keys()) - {"layers", "pool"}
    assert common and {name: own[name] for name in common} == {name: defaults[name] for name in common}
