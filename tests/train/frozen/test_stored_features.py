"""What a frozen backbone computes is computed once and read from disk: it changes no number but by rounding."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import contexture
from contexture.cli import main as cli
from contexture.data import bucketing as lengths
from contexture.data.errors import DataError
from contexture.data.tasks.store.stored_features import FeatureFiles, FeatureWriter, Shape, writing
from contexture.models.shapes import by_path
from contexture.train.run.report import read_metrics
from tests.helpers.commands import devices, done, run_command
from tests.helpers.parity_rule import close
from tests.helpers.random_runs import first_states, random_training, zeros
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
BERT = GOLDEN / "bert"
WORDS = "the cat a small dog one old man the queen my brother that bird sees likes follows finds".split()


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Texts of 1 to 40 words in the small corpus's words, for each kind of task."""
    folder, rng = tmp_path_factory.mktemp("texts"), random.Random(4)

    def write(name: str, rows: list[dict]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    for split, count in (("train", 90), ("dev", 41)):
        texts = [rng.choices(WORDS, k=1 + int(rng.random() ** 3 * 36)) for _ in range(count)]
        plain = [" ".join(words) for words in texts]
        write(f"classify.{split}.jsonl", [{"text": t, "label": t[0]} for t in plain])
        write(f"pairs.{split}.jsonl", [{"text": t, "second": t[:9], "label": t[0]} for t in plain])
        write(f"tag.{split}.jsonl", [{"words": w, "tags": [x[0] for x in w]} for w in texts])
        write(f"choice.{split}.jsonl", [{"text": t, "choices": [t[:5], "dog", "cat"][: 2 + (n % 2)], "label": n % 2}
                                        for n, t in enumerate(plain)])  # fmt: skip
        answers = [{"text": words[:1], "answer_start": [0]} for words in texts]
        questions = [{"id": str(n), "question": "the cat", "context": t, "answers": answers[n]}
                     for n, t in enumerate(plain)]  # fmt: skip
        write(f"span.{split}.jsonl", questions)
    return folder


@pytest.fixture(scope="module", autouse=True)
def several_lengths():
    """Three lengths, which need not save much."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lengths, "MIN_SAVING", 0.05)
        patch.setattr(lengths, "MAX_LENGTHS", 3)
        yield


def words_of(source: Path, files: Path, kind: str, *more: str) -> list[str]:
    train, dev = sorted(files.glob(f"{kind}.*"), reverse=True)
    words = "--data.batch 8 --data.length 48 --optim.peak-lr 1e-2 --log.every 4 --save.every 8 --evaluate.every 12"
    words += " --steps 24 --optim.schedule linear --optim.decay-steps 24 --optim.warmup 0"
    words += " --optim.frozen backbone --model.head-dropout 0.3"
    name = "classify" if kind == "pairs" else kind
    return ["finetune", str(source), "--task.kind", name, "--task.train", str(train), "--task.dev", str(dev),
            *words.split(), *more]  # fmt: skip


def figures(folder: Path) -> list[dict]:
    """What each step and each evaluation measured."""
    # Of speed, and of arrays: what is stored has a row for each sequence.
    others = ("tokens_per_second", "seconds_left", "data_wait", "padding_ratio")
    records = [r for r in read_metrics(folder / "metrics.jsonl") if r["split"] != "goodput"]
    return [{k: x for k, x in r.items() if k not in others} for r in records]


def same(one: Path, other: Path, count: int = 26, step: int | None = None) -> None:
    """To rounding: each step begins with the parameters that the one before has moved. step: of the parameters, None
    for the last."""
    assert len(figures(one)) == count == len(figures(other))
    for record, expected in zip(figures(one), figures(other), strict=True):
        assert record.pop("split") == expected.pop("split")
        assert record == pytest.approx(expected, rel=1e-5, abs=1e-6)
    params, others = (by_path(contexture.load(folder, step)[1]) for folder in (one, other))
    for path, x in params.items():
        # An answer depends on no number that is added to all scores: such a bias is moved by rounding alone.
        if path.replace("/out/", "/") not in ("heads_choice/bias", "heads_span/bias"):
            close(x, others[path], path, 1e-4)


def same_bits(one: Path, other: Path) -> None:
    steps = [[r for r in figures(folder) if r["split"] == "train"] for folder in (one, other)]
    assert steps[0] == steps[1]
    params, others = (by_path(contexture.load(folder)[1]) for folder in (one, other))
    for path, x in params.items():
        assert np.array_equal(x, others[path]), path


CASES = {
    "bert": ("classify", "tag", "pairs", "choice", "span"),
    "gpt": ("classify", "tag", "choice", "span"),
    "elmo": ("tag", "pairs", "choice", "span"),
}


def test_a_few_steps_are_those_of_computing_each_time(tiny_run, files, tmp_path, monkeypatch):
    """In training and evaluation, at two lengths, with dropout in the head."""
    monkeypatch.setattr(lengths, "MAX_LENGTHS", 2)
    words = words_of(tiny_run, files, "classify", "--steps", "6", "--evaluate.every", "6")
    with first_states(zeros):
        done(*words, "--dir", tmp_path / "disk")
        done(*words, "--dir", tmp_path / "off", "--data.features", "off")
    assert list((tmp_path / "disk" / "features").glob("train-*")) and not (tmp_path / "off" / "features").exists()
    same(tmp_path / "disk", tmp_path / "off", 7)
    assert by_path(contexture.load(tmp_path / "disk")[1])["heads_classify/kernel"].any()


@pytest.mark.long
@pytest.mark.parametrize(("family", "kind"), [(family, kind) for family, kinds in CASES.items() for kind in kinds])
def test_losses_and_parameters_are_those_of_computing_each_time(request, files, family, kind, tmp_path):
    """In training and evaluation, at several lengths, with dropout in the head."""
    source = request.getfixturevalue({"bert": "tiny_run", "gpt": "gpt_run", "elmo": "elmo_run"}[family])
    more = ["--task.lm-weight", "0"] if family == "gpt" else []
    words = words_of(source, files, kind, *more)
    done(*words, "--dir", tmp_path / "disk")
    done(*words, "--dir", tmp_path / "off", "--data.features", "off")
    assert list((tmp_path / "disk" / "features").glob("train-*")) and not (tmp_path / "off" / "features").exists()
    # Adam enlarges the rounding of small gradients of the LSTM that reads an ELMo's alternatives: losses agree in all
    # 24 steps, kernels to 2e-4 of the largest at the end, and to 1e-4 at step 16.
    same(tmp_path / "disk", tmp_path / "off", step=16 if (family, kind) == ("elmo", "choice") else None)


@pytest.mark.long
@pytest.mark.parametrize("more", [("--mesh.fsdp", "4"), ("--optim.accumulate", "2")], ids=" ".join)
def test_on_eight_devices_they_are_too(elmo_run, tiny_run, files, tmp_path, more):
    with devices(8):
        for source, kind in ((tiny_run, "classify"), (elmo_run, "tag")):
            words = words_of(source, files, kind, "--data.batch", "16", *more)
            for name, features in ((f"{kind}-disk", "disk"), (f"{kind}-off", "off")):
                done(*words, "--dir", tmp_path / name, "--data.features", features)
            same(tmp_path / f"{kind}-disk", tmp_path / f"{kind}-off")


SHORT = ("--data.length", "24")


@pytest.fixture(scope="module")
def run(one_device, files, tmp_path_factory) -> Path:
    """A tagger of a frozen BERT, to be copied."""
    folder = tmp_path_factory.mktemp("stored") / "run"
    with random_training(8):
        done(*words_of(BERT, files, "tag", *SHORT, "--steps", "8"), "--dir", folder)
    return folder


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """The sequences that were computed."""
    added: list[int] = []
    add = FeatureWriter.add

    def call(self, sequences, mask_BL, features):
        added.append(len(sequences))
        add(self, sequences, mask_BL, features)

    monkeypatch.setattr(FeatureWriter, "add", call)
    return added


def test_a_start_reads_what_is_there_and_computes_what_is_damaged(run, files, tmp_path, counted, capsys, start_only):
    shutil.copytree(run, tmp_path / "run")
    folder = tmp_path / "run" / "features"
    [train], [dev] = list(folder.glob("train-*")), list(folder.glob("dev-*"))
    whole = (train / "states.bin").read_bytes()
    (folder / "train-of-another-backbone").mkdir()
    words = words_of(BERT, files, "tag", *SHORT, "--steps", "12", "--dir", str(tmp_path / "run"))
    assert run_command(capsys, *words)[0] == 130
    assert not counted and not (folder / "train-of-another-backbone").exists()

    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    (train / "states.bin").write_bytes(bytes(damaged))
    (dev / "index.json").write_text("{}")
    code, err = run_command(capsys, *words)
    assert code == 130 and sum(counted) == 90 + 41 and err.count("computing it again") == 2
    assert (train / "states.bin").read_bytes() == whole
    assert run_command(capsys, *words)[0] == 130 and sum(counted) == 90 + 41


@pytest.fixture(scope="module")
def trained(one_device, tiny_run, files, tmp_path_factory) -> Path:
    """That tagger, trained."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    done(*words_of(tiny_run, files, "tag", "--steps", "8"), "--dir", folder)
    return folder


@pytest.mark.long
def test_a_run_that_is_resumed_reads_what_is_there(trained, tiny_run, files, tmp_path, counted, capsys):
    """And what is damaged, or of other parameters, is computed again. The run is that without any of these, to the
    bit."""
    shutil.copytree(trained, tmp_path / "run")
    folder = tmp_path / "run" / "features"
    [train], [dev] = list(folder.glob("train-*")), list(folder.glob("dev-*"))
    (folder / "train-of-another-backbone").mkdir()
    more = words_of(tiny_run, files, "tag", "--dir", str(tmp_path / "run"))
    done(*more, "--steps", "12")
    assert not counted and not (folder / "train-of-another-backbone").exists()

    states = train / "states.bin"
    damaged = bytearray(states.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    states.write_bytes(bytes(damaged))
    (dev / "index.json").write_text("{}")
    capsys.readouterr()
    done(*more, "--steps", "16")
    assert sum(counted) == 90 + 41
    assert capsys.readouterr().err.count("computing it again") == 2
    done(*more, "--steps", "24")
    assert sum(counted) == 90 + 41
    done(*words_of(tiny_run, files, "tag", "--dir", str(tmp_path / "whole")))
    same_bits(tmp_path / "run", tmp_path / "whole")


def test_no_padding_is_stored_and_no_layer_that_no_head_reads(run):
    [train] = (run / "features").glob("train-*")
    tokens = np.fromfile(train / "places.bin", "<i8").reshape(-1, 2)[:, 1]
    assert (train / "states.bin").stat().st_size == tokens.sum() * 8 * 4 and len(tokens) == 90
    assert tokens.max() > tokens.min() and not (train / "pooled.bin").exists()


def test_the_runs_of_a_grid_share_what_is_computed(tiny_run, files, tmp_path, counted):
    words = words_of(tiny_run, files, "classify", "--steps", "4")
    at = words.index("--optim.peak-lr")
    with random_training(4):
        done(*words[:at], *words[at + 2 :], "--grid", "lr=1e-2,1e-3", "--seeds", "2", "--dir", tmp_path / "grid")
    assert sum(counted) == 90 + 41
    assert len(list((tmp_path / "grid" / "features").iterdir())) == 2
    assert not list((tmp_path / "grid").glob("*/features"))


def test_a_full_disk_is_one_line(files, tmp_path, capsys, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    words = words_of(BERT, files, "tag", *SHORT)
    with first_states(zeros):
        assert cli.main([*words, "--dir", str(tmp_path / "small")]) == 1
    [line] = [line for line in capsys.readouterr().err.splitlines() if "Error" in line]
    assert "GB are free; make room, or give --data.features off" in " ".join(line.split())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    def full(self, *args):
        raise OSError(28, "No space left on device", "states.bin")

    monkeypatch.setattr(FeatureWriter, "add", full)
    with first_states(zeros):
        assert cli.main([*words, "--dir", str(tmp_path / "full")]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert not list((tmp_path / "full" / "features").iterdir())


def test_what_does_not_fit_is_computed_for_each_step_and_said(files, tmp_path, capsys):
    with random_training(2):
        done(*words_of(BERT, files, "classify", *SHORT, "--steps", "2", "--data.ramp-from", "4", "--data.ramp-steps",
                       "1"), "--dir", tmp_path / "ramp")  # fmt: skip
    assert "is computed for each step: batches grow (data.ramp-from)" in capsys.readouterr().err
    assert not (tmp_path / "ramp" / "features").exists()


def test_files_hold_what_was_written_and_batches_get_it_by_number(tmp_path):
    """Two examples of two sequences, one of them without tokens; written in another order."""
    rng, shape = np.random.default_rng(0), Shape(2, 3, True, np.dtype(np.float32))
    states, pooled = rng.normal(size=(4, 2, 5, 3)).astype("f4"), rng.normal(size=(4, 3)).astype("f4")
    lengths_B = np.array([5, 0, 2, 4])
    mask_BL = (np.arange(5) < lengths_B[:, None]).astype(np.int32)
    order = np.array([2, 0, 3, 1])
    with writing(tmp_path / "split", shape, 4, {"of": 1}) as writer:
        for part in (order[:3], order[3:]):
            writer.add(part, mask_BL[part], {"states": states[part], "pooled": pooled[part]})
    files = FeatureFiles.open(tmp_path / "split", shape, {"of": 1})
    batch = files.add({"mask": mask_BL.reshape(2, 2, 5)[[1, 0]]}, np.array([1, 0]))
    expected = np.where(mask_BL[:, None, :, None] > 0, states, 0).reshape(2, 2, 2, 5, 3)[[1, 0]]
    assert np.array_equal(batch["states"], expected) and batch["states"].any()
    assert np.array_equal(batch["pooled"], pooled.reshape(2, 2, 3)[[1, 0]])
    with pytest.raises(DataError, match="of other parameters or examples"):
        FeatureFiles.open(tmp_path / "split", shape, {"of": 2})
    with pytest.raises(DataError, match="cannot be read"):
        FeatureFiles.open(tmp_path, shape, {"of": 1})


@pytest.mark.long
def test_a_run_of_a_grid_is_that_run_alone(tiny_run, files, tmp_path):
    words = words_of(tiny_run, files, "classify", "--steps", "8")
    done(*words, "--seeds", "2", "--dir", tmp_path / "grid")
    done(*words, "--seed", "1", "--dir", tmp_path / "alone")
    [second] = [
        file.parent
        for file in (tmp_path / "grid").glob("*/run.json")
        if json.loads(file.read_text())["config"]["seed"] == 1
    ]
    same_bits(second, tmp_path / "alone")
