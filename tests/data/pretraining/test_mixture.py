"""Mixtures of texts: each source in its share, each of its sequences in its own order, found by number alone."""

import importlib
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture import places
from contexture.data import rng
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.data.mixed_paths import MixedPath, mixture_of, split_weight
from contexture.data.packing import apart
from contexture.data.pretraining import mixture
from contexture.data.pretraining.mixture import Draws, MixedBatches, open_mixture
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.models.config import BertConfig, GptConfig
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import with_absolute_paths
from contexture.train.setup import open_batches
from tests.helpers.slow_pairs import as_text, random_documents, vocabulary

WEIGHTS = {"a": 0.7, "b": 0.2, "long-name.1": 0.1}
command_line = importlib.import_module("contexture.cli.main")
PIECES = WordPiece(vocabulary(), lowercase=True)


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.floats(0.02, 50.0), min_size=1, max_size=6),
    seed=st.integers(-5, 2**40),
    cycle=st.sampled_from([512, 777, 1024]),
    start=st.integers(0, 10**6),
)
def test_sources_are_drawn_by_their_shares_and_read_in_their_order(weights, seed, cycle, start):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixture, "CYCLE", cycle)
        try:
            draws = Draws(weights, seed)
        except DataError as error:
            assert min(weights) / sum(weights) * cycle < 1.0 and "is less than one of" in str(error)
            return
        numbers = np.arange(3 * cycle + 5)
        of, own = draws.of(numbers)
        counts = [0] * len(weights)
        for number, (source, place) in enumerate(zip(of.tolist(), own.tolist(), strict=True)):
            if number in (0, 1, cycle - 1, cycle, cycle + 7, 3 * cycle):
                assert draws.before(number).tolist() == counts
            assert place == counts[source]
            counts[source] += 1
            if number + 1 == cycle:
                for count, weight in zip(counts, weights, strict=True):
                    assert abs(count - weight / sum(weights) * cycle) < 1.0
        # Any numbers, in any order, by another reader.
        some = np.array(random.Random(start).sample(range(len(numbers)), 50))
        again = Draws(weights, seed).of(some)
        assert (again[0] == of[some]).all() and (again[1] == own[some]).all()


def test_shares_are_kept_to_a_hundredth_of_them_over_100_000_sequences():
    weights = [0.55, 0.3, 0.1, 0.04, 0.01]
    of, _ = Draws(weights, 3).of(np.arange(100_000))
    shares = np.bincount(of) / len(of)
    assert all(abs(share - weight) < 0.01 * max(weight, 0.1) for share, weight in zip(shares, weights, strict=True))
    # Nor are they dealt in turn: a stretch of 100 has as many as chance gives it.
    counts = np.array([(part == 0).sum() for part in of[:65_000].reshape(-1, 100)])
    assert 0.8 < counts.var() / (100 * 0.55 * 0.45) < 1.2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three texts, prepared for a BERT and for a GPT."""
    folder = tmp_path_factory.mktemp("mixture")
    for number, name in enumerate(WEIGHTS):
        (folder / f"{name}.txt").write_text(as_text(random_documents(number, 40)), "utf-8")
        config = DataConfig(path=(str(folder / f"{name}.txt"),), dev_fraction=0.2, split_sentences=False)
        for stream in ("sentence_pairs", "windows"):
            prepare(config, PIECES, folder / stream / name, stream=stream)
    return folder


def opened(folder: Path, family: str, **more) -> tuple[MixedBatches, Run]:
    model = BertConfig(vocab=64) if family == "bert" else GptConfig(vocab=64)
    stream = "sentence_pairs" if family == "bert" else "windows"
    paths = [MixedPath(name, weight, str(folder / stream / name)) for name, weight in WEIGHTS.items()]
    store = open_mixture(paths, folder / stream)
    data = DataConfig(
        path=tuple(f"{name}={weight}:{path}" for name, weight, path in paths),
        **{"batch": 24, "length": 32, "max_predictions": 5, **more},
    )
    run = Run(model=model, data=data, seed=5)
    batches = open_batches(run, store, store.tokenizer)
    assert isinstance(batches, MixedBatches)
    return batches, run


@pytest.mark.parametrize("family", ["bert", "gpt"])
def test_a_batch_holds_the_sequences_that_its_sources_have_alone(folder: Path, family: str):
    batches, run = opened(folder, family)
    seen = set()
    for step in (0, 3, 4000):
        numbers = step * 24 + np.arange(24)
        of, own = batches.draws.of(numbers)
        seen |= set(of.tolist())
        batch = batches.read(step)
        for number, source in enumerate(batches.store.sources):
            rows = np.flatnonzero(of == number)
            key = rng.key(rng.SOURCE, run.seed, number)
            alone = run.text.open_batches(source.shards, run.data, key, mixture.NEVER)
            # Sequence n of a text stands at row n % 24 of its step n // 24.
            for row in rows.tolist():
                expected = alone.read(int(own[row]) // 24, np.array([int(own[row]) % 24]))
                assert all((batch[name][row] == field[0]).all() for name, field in expected.items())
        some = np.array([7, 2])
        assert all((field == batch[name][some]).all() for name, field in batches.read(step, some).items())
    assert seen == {0, 1, 2}


def test_sequences_of_several_sources_share_rows(folder: Path):
    plain, packed = (opened(folder, "bert", packed=each)[0] for each in (False, True))
    assert packed.rows is not None and "packs" in packed.fields
    for step in (0, 9):
        alone, batch = plain.read(step), apart(packed.read(step))
        assert all((batch[name] == field).all() for name, field in alone.items())


def test_passes_are_counted_for_each_source(folder: Path):
    batches, _ = opened(folder, "gpt")
    of, _ = batches.draws.of(np.arange(50 * 24))
    expected = {
        f"passes/{name}": round(float((of == n).sum()) / source.examples_per_epoch, 4)
        for n, (name, source) in enumerate(zip(WEIGHTS, batches.sources, strict=True))
    }
    assert batches.passes(50) == expected and batches.passes(0) == dict.fromkeys(expected, 0.0)
    assert batches.examples_per_epoch == sum(each.examples_per_epoch for each in batches.sources)
    assert "a 70.0%: " in batches.describe() and "long-name.1 10.0%: " in batches.describe()


def test_the_mixture_is_part_of_what_a_fingerprint_says(folder: Path):
    def fingerprint(*named: tuple[str, float]) -> str:
        paths = [MixedPath(name, weight, str(folder / "windows" / name)) for name, weight in named]
        return open_mixture(paths, folder / "windows").fingerprint

    prints = [
        fingerprint(("a", 1.0), ("b", 2.0)),
        fingerprint(("a", 1.0), ("b", 3.0)),
        fingerprint(("b", 2.0), ("a", 1.0)),
    ]
    assert len({*prints}) == 3


def test_guesses_are_by_the_frequencies_of_the_mixture(folder: Path):
    store = opened(folder, "gpt")[0].store
    counts = [each.shards.unigrams() for each in store.sources]
    shares = sum(weight * each / each.sum() for weight, each in zip(WEIGHTS.values(), counts, strict=True))
    total = sum(int(each.sum()) for each in counts)
    assert np.abs(store.unigrams() - shares * total).max() <= 0.5


def test_sources_of_two_vocabularies_are_refused(folder: Path, tmp_path: Path):
    config = DataConfig(path=(str(folder / "a.txt"),), split_sentences=False)
    prepare(config, WordPiece([*vocabulary(), "more"], lowercase=True), tmp_path / "other", stream="windows")
    paths = [MixedPath("a", 1.0, str(folder / "windows" / "a")), MixedPath("b", 1.0, str(tmp_path / "other"))]
    with pytest.raises(DataError, match=r"other has another vocabulary than .*windows/a; prepare all sources of a mix"):
        open_mixture(paths, tmp_path)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("a=1:x", "y"), "data.path=y has no weight, and another source has one; give each source as NAME=WEIGHT:PATH"),
        (("a=0:x",), "data.path=a=0:x: '0' is no positive number; give each source as NAME=WEIGHT:PATH"),
        (("a=nan:x",), "'nan' is no positive number"),
        (("a=-1:x",), "'-1' is no positive number"),
        (("a=:x",), "'' is no positive number"),
        (("..=1:x",), "'..' is no name of letters and digits"),
        (
            ("a=1:x", "b=1e-9:y"),
            "data.path=b=…: its share of the weights, 1.0e-09, is less than one of 65,536",
        ),
        (("a=1e308:x", "b=1e308:y"), "its share of the weights, 0.0e+00, is less than one of"),
        (("a=1:x", "a=2:y"), "data.path names 'a' twice; give each source a name of its own"),
    ],
)
def test_mistakes_in_a_mixture_are_named(paths: tuple[str, ...], message: str):
    with pytest.raises(ValueError) as caught:
        DataConfig(path=paths)
    assert message in str(caught.value)


def test_held_out_text_of_a_mixture_is_a_share_of_each():
    with pytest.raises(
        ValueError, match=r"data\.dev has no meaning for a mixture; give data\.dev-fraction, or prepare"
    ):
        DataConfig(path=("a=1:x",), dev=("y",))


def test_an_elmo_takes_no_mixture():
    with pytest.raises(ValueError, match=r"data\.path: a mixture is for a BERT or a GPT; an ELMo's rows continue"):
        TEXT_FAMILIES["elmo"].check_pretraining(DataConfig(path=("a=1:x",)))


def test_only_a_name_with_a_weight_stands_in_front_of_a_path():
    assert split_weight("de=0.3:gs://b/c=1:d") == ("de=0.3:", "gs://b/c=1:d")
    for path in ("gs://b/c=1:d", "tfds:lm1b:train", "a/b=1:c", "C:\\x", "hf://datasets/a/b@c=1:d/e", "a b=1:c", ""):
        assert split_weight(path) == ("", path) and mixture_of([path]) == ()
    assert mixture_of(["de=.3:d", "fr=2e1:f"]) == (MixedPath("de", 0.3, "d"), MixedPath("fr", 20.0, "f"))


def test_addresses_and_paths_stand_behind_the_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On the command line, in Python, and in run.json."""
    monkeypatch.setattr(command_line, "local", lambda place: f"/copy/{place[5:]}")
    monkeypatch.setattr(places, "local", lambda place: f"/copy/{place[5:]}")
    words = ["--data.path", "a=1:gs://b/x", "c=2:y", "--data.path=d=3:s3://e/z"]
    expected = ["--data.path", "a=1:/copy/b/x", "c=2:y", "--data.path=d=3:/copy/e/z"]
    assert command_line._with_paths(words) == expected
    assert places.path_of(words[1:3]) == expected[1:3]
    monkeypatch.chdir(tmp_path)
    absolute = with_absolute_paths(Run(data=DataConfig(path=("a=1:x", "b=2:tfds:lm1b"))))
    assert absolute.data.path == (f"a=1:{tmp_path / 'x'}", "b=2:tfds:lm1b")


def test_a_share_of_less_than_one_sequence_of_a_cycle_is_refused():
    with pytest.raises(DataError, match=r"data\.path: a share of 1\.0e-06 is less than one of 65,536 sequences; raise"):
        Draws([1.0, 1e-6], 0)
