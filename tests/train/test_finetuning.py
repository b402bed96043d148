"""A pretrained run becomes a model that does somebody's task; and that one goes on to the next."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import contexture
from contexture.cli import main as cli
from contexture.models.shapes import path_of
from contexture.train.evaluation.predict import Predictor
from contexture.train.run.report import read_metrics
from tests.helpers.parity_rule import assert_differs

GOLDEN = Path(__file__).parents[1] / "golden"
pytestmark = pytest.mark.usefixtures("one_device")


def parameters(folder: Path, step: int | None = None) -> dict[str, np.ndarray]:
    params = contexture.load(folder, step)[1]
    return {path_of(k): np.asarray(x) for k, x in jax.tree_util.tree_flatten_with_path(params)[0]}


def finetune(words: list[str], folder: Path, *more: object) -> int:
    return cli.main([*words, "--dir", str(folder), *map(str, more)])


@pytest.fixture(scope="module")
def words(task_words):
    """Short runs: 8 steps, saved once."""
    return lambda kind="classify": [*task_words(kind)[:-4], "--log.every", "4", "--steps", "8"]


def stderr_of(capsys: pytest.CaptureFixture[str]) -> str:
    """What was told on stderr, a space between words."""
    return " ".join(capsys.readouterr().err.split())


SMALL = ["--data.length", "24", "--steps", "1"]


def from_run(words: list[str], run: Path) -> list[str]:
    return [words[0], str(run), *words[2:]]


@pytest.mark.long
def test_a_task_is_learned(task_run):
    for kind in ("classify", "tag"):
        held = [r for r in read_metrics(task_run(kind) / "metrics.jsonl") if r["split"] == "dev"][-1]
        assert held["accuracy"] > held["majority_accuracy"] + 0.2, kind
    held = [r for r in read_metrics(task_run("regress") / "metrics.jsonl") if r["split"] == "dev"][-1]
    assert held["mse"] < held["mean_mse"] / 2 and held["pearson"] > 0.8
    assert json.loads((task_run() / "run.json").read_text())["labels"] == ["animal", "person", "thing"]


def test_one_knows_what_was_taken_over(capsys, words, tmp_path, start_or_run):
    source = GOLDEN / "bert"
    assert finetune([*from_run(words(), source), *SMALL], tmp_path / "run") == start_or_run
    messages = stderr_of(capsys)
    assert f"parameters from {source}, step 120" in messages and "kept backbone/… (23 tensors)" in messages
    for line in ("new heads_classify/kernel", "dropped heads_mlm/bias", "dropped heads_nsp/kernel"):
        assert line in messages
    assert "classify.train.tsv: text from column 'text', label from column 'label'" in messages
    assert "160 examples in sequences of" in messages and "1 steps are 0.10 epochs; 97 examples held out" in messages


def test_the_same_labels_keep_their_head_and_others_drop_it(capsys, words, tmp_path, start_only):
    """Said before the first step; of labels that are the same but for one, the head is new."""
    asked = [*from_run(words(), GOLDEN / "bert_classify"), *SMALL]
    lines = [f"the cat sees {n}\t{('animal', 'person', 'thing')[n % 3]}\n" for n in range(18 * 3)]
    for count, said in ((2, ["kept heads_classify/… (2 tensors)"]),
                        (3, ["dropped heads_classify/kernel 8×2", "new heads_classify/kernel 8×3"])):  # fmt: skip
        kept = [line for n, line in enumerate(lines) if n % 3 < count]
        (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(kept))
        (tmp_path / "dev.tsv").write_text("text\tlabel\n" + "".join(kept).replace("cat", "dog"))
        files = ["--task.train", tmp_path / "train.tsv", "--task.dev", tmp_path / "dev.tsv"]
        assert finetune(asked, tmp_path / str(count), *files) == 130
        messages = stderr_of(capsys)
        assert all(line in messages for line in said), messages


@pytest.mark.long
def test_the_same_task_keeps_its_head_and_another_drops_it(capsys, words, task_run, tmp_path):
    """And what is frozen is not touched: here the head, the embeddings and the lower of two layers."""
    head, kernel = "heads_classify/kernel", "backbone/layers/ffn/in/kernel"
    frozen = ["--optim.frozen", "classify", "--optim.frozen-layers", "1", "--optim.layer-decay", "0.5"]
    assert finetune([*from_run(words(), task_run()), *frozen], tmp_path / "same") == 0
    assert "kept heads_classify/… (2 tensors)" in stderr_of(capsys)
    before, after = parameters(task_run()), parameters(tmp_path / "same")
    assert np.array_equal(before[head], after[head])
    assert [np.array_equal(before[kernel][n], after[kernel][n]) for n in range(2)] == [True, False]
    assert np.array_equal(before["backbone/embeddings/tokens"], after["backbone/embeddings/tokens"])
    assert finetune(from_run(words("pairs"), task_run()), tmp_path / "pairs", "--steps", 1) == 0
    messages = stderr_of(capsys)
    assert "dropped heads_classify/kernel 32×3" in messages and "new heads_classify/kernel 32×2" in messages


@pytest.mark.long
def test_class_weights_change_the_loss_and_not_what_is_counted(words, tmp_path):
    for name, weights in (("plain", []), ("weighted", ["--task.class-weights", "balanced"])):
        assert finetune([*words(), *weights, "--init.random"], tmp_path / name, "--steps", 1) == 0
    read = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("plain", "weighted")]
    first = [next(record for record in records if record["split"] == "train") for records in read]
    assert first[0]["accuracy"] == first[1]["accuracy"]
    assert_differs(first[0]["loss"], first[1]["loss"], 1e-4)


PATIENT = [
    *(*SMALL, "--evaluate.every", "1", "--evaluate.patience", "2", "--evaluate.metric", "accuracy"),
    *("--optim.frozen", "backbone", "--optim.peak-lr", "1e-9", "--steps", "40"),
]


def test_a_run_without_progress_stops_early_and_stays_stopped(capsys, words, tmp_path):
    """Its backbone is frozen, and is that of the run it began from to the bit."""
    folder, source = tmp_path / "run", GOLDEN / "bert"
    patient = [*from_run(words(), source), *PATIENT]
    assert finetune(patient, folder) == 0
    out, err = capsys.readouterr()
    assert "done: 3 steps in" in err and " next: contexture predict " in err.splitlines()[-1] and not out
    assert finetune(patient, folder) == 0
    messages = stderr_of(capsys)
    assert "resuming from step 3" in messages and "stopped early: no better accuracy since step 1" in messages
    assert [r["step"] for r in read_metrics(folder / "metrics.jsonl") if r["split"] == "train"] == [1, 2, 3]
    assert contexture.evaluate(folder, step="best", to=str(tmp_path / "best"))["step"] == 1
    before, after = parameters(source), parameters(folder)
    assert all(np.array_equal(before[path], x) for path, x in after.items() if path.startswith("backbone"))


@pytest.mark.long
def test_more_patience_lets_a_stopped_run_go_on(capsys, words, tmp_path):
    words = [*from_run(words(), GOLDEN / "bert"), *PATIENT]
    assert finetune(words, tmp_path / "run") == 0 and "done: 3 steps in" in capsys.readouterr().err
    assert finetune([*words, "--evaluate.patience", "3"], tmp_path / "run") == 0
    assert "done: 4 steps in" in capsys.readouterr().err


@pytest.mark.long
def test_epochs_are_counted_as_the_original_counts(capsys, words, tmp_path):
    by_epochs = [*words()[:-2], "--epochs", "0.55", "--optim.warmup-fraction", "0.4"]
    assert finetune(by_epochs, tmp_path / "run") == 0
    rates = [r["learning_rate"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if r["split"] == "train"]
    assert len(rates) == int(160 / 16 * 0.55) == 5
    assert rates[:2] == pytest.approx([5e-3 / 2, 5e-3], rel=1e-5) and rates[2] > rates[3] > rates[4] > 0
    assert finetune([*by_epochs[:-3], "0.35", *by_epochs[-2:]], tmp_path / "run") == 2
    assert "--epochs 0.55, not 0.35; a run can only be made longer" in capsys.readouterr().err


@pytest.mark.long
def test_text_of_the_task_tunes_the_pretraining_first(capsys, tiny_run, text_folder, tmp_path, start_or_run):
    """Pretraining goes on from another run with its vocabulary, and gives the next fine-tuning."""
    text = text_folder / "text1.txt"
    words = ["pretrain", "bert.tiny", "--init", tiny_run, "--data.path", text, "--dir", tmp_path / "run",
             *("--model.layers 2 --model.hidden 32 --model.heads 2 --model.ffn 64 --model.vocab 150 --steps 2 "
               "--data.length 32 --data.max-predictions 5 --data.batch 16 --optim.warmup 1").split()]  # fmt: skip
    assert cli.main([*map(str, words)]) == start_or_run
    assert "kept heads_mlm/… (5 tensors)" in stderr_of(capsys)
    vocabularies = [(folder / "tokenizer" / "vocab.txt").read_bytes() for folder in (tiny_run, tmp_path / "run")]
    assert vocabularies[0] == vocabularies[1]


@pytest.mark.long
def test_a_file_and_texts_at_hand_are_answered_alike(task_run, task_files, tmp_path):
    for kind, suffix in (("classify", "tsv"), ("tag", "conllu")):
        source, to = task_files / f"{kind}.dev.{suffix}", tmp_path / kind / "said.jsonl"
        assert cli.main(["predict", str(task_run(kind)), "--input", str(source), "--to", str(to)]) == 0
        written = [json.loads(line) for line in to.read_text("utf-8").splitlines()]
        assert len(written) == 97 and "label" not in written[0] and "labels" not in written[0]
        texts = [record.get("text") or record["words"] for record in written]
        answers: Any = Predictor(task_run(kind), batch=8)(texts)
        evaluated = contexture.evaluate(task_run(kind), to=str(tmp_path / f"{kind}-evaluated"))["predictions"]
        counted = [json.loads(line) for line in Path(evaluated).read_text("utf-8").splitlines()]
        name = "prediction" if kind == "classify" else "predictions"
        assert [r[name] for r in written] == [r[name] for r in answers] == [r[name] for r in counted]
        assert [r["id"] for r in written] == [r["id"] for r in counted]
    answer = contexture.predict(task_run(), ["the cat sees a red house"])[0]["prediction"]
    assert answer in ("animal", "person", "thing")


def test_gaps_are_filled_by_likelihood(capsys):
    run = GOLDEN / "bert"
    gaps = contexture.open(run).fill("The [MASK] sees the river. [MASK] old man.", top=3)
    assert [len(gap) for gap in gaps] == [3, 3]
    assert all(0 < b["score"] <= a["score"] < 1 for gap in gaps for a, b in zip(gap, gap[1:], strict=False))
    whole = contexture.open(run).fill("The [MASK] sees", top=10**6)[0]
    assert sum(piece["score"] for piece in whole) == pytest.approx(1.0, abs=1e-5)
    assert cli.main(["fill", str(run), "--text", "the [MASK]"]) == 0
    assert "masks 1\n  token" in capsys.readouterr().out


@pytest.mark.long
def test_it_goes_on_without_the_run_that_it_began_from(capsys, words, task_run, tmp_path):
    """Also from two files of one name; and what would shorten it changes nothing."""
    import shutil

    base, folder = tmp_path / "base", tmp_path / "run"
    shutil.copytree(task_run(), base)
    files = []
    for name, label in (("a", "[/yes]"), ("b", "[no]")):
        (tmp_path / name).mkdir()
        files.append(str(tmp_path / name / "same.tsv"))
        Path(files[-1]).write_text("text\tlabel\n" + f"the cat {name}\t{label}\n" * (16 if name == "b" else 12))
    asked = ["finetune", str(base), "--task.kind", "classify", "--task.train", *files]
    asked += ["--epochs", "3", "--data.batch", "8"]
    assert finetune(asked, folder) == 0
    messages = stderr_of(capsys)
    assert "[/yes] 12" in messages and "[no] 16" in messages and "done: 10 steps" in messages
    shutil.rmtree(base)
    assert finetune(asked, folder) == 0 and "resuming from step 10" in stderr_of(capsys)
    before = (folder / "run.json").read_bytes()
    assert finetune([*asked[:-4], *asked[-2:], "--steps", "7"], folder) == 2
    assert "holds a run of 10 steps, not 7; a run can only be made longer" in stderr_of(capsys)
    assert (folder / "run.json").read_bytes() == before
    Path(files[0]).write_text(Path(files[0]).read_text().replace("cat", "dog"))
    assert finetune(asked, folder) == 2 and "same.tsv is not what it was when" in stderr_of(capsys)
    trained = contexture.evaluate(folder, split="train", to=str(tmp_path / "e"))["predictions"]
    assert len({json.loads(line)["id"] for line in Path(trained).read_text().splitlines()}) == 28


def test_words_that_contradict_each_other(capsys, words, tmp_path):
    assert finetune([*words(), "--epochs", "3"], tmp_path / "run") == 2
    assert "--steps and --epochs both say how long to train" in stderr_of(capsys)
    assert finetune(words(), Path(words()[1])) == 2 and "is the run to begin from; give another --dir" in stderr_of(
        capsys
    )


@pytest.mark.long
def test_a_warmup_of_a_fine_tuning_is_counted_in_steps(words, tmp_path):
    assert finetune([*words(), "--optim.warmup", "6"], tmp_path / "run", "--steps", "8") == 0
    rates = [r["learning_rate"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if r["split"] == "train"]
    assert rates[:6] == pytest.approx([5e-3 * n / 6 for n in range(1, 7)], rel=1e-5)


@pytest.mark.long
def test_a_gpts_special_tokens_begin_with_fresh_rows(door, text_folder, task_files, tmp_path):
    """Also where the table had rows to spare: those were never trained for a token. All others are taken over."""
    sizes = (
        "--model.layers 1 --model.hidden 16 --model.heads 2 --model.ffn 32 --model.vocab 90 --data.length 32".split()
    )
    words = ["pretrain", "gpt.tiny", "--data.path", text_folder, "--data.vocabulary", "characters", *sizes]
    done = door(*words, "--data.batch", "4", "--steps", "20", "--optim.warmup", "1", "--dir", tmp_path / "gpt")
    assert done.returncode == 0, done.stderr
    files = ["--task.train", task_files / "classify.train.tsv", "--task.dev-fraction", "0.1", "--data.batch", "4"]
    more = ["--steps", "1", "--optim.frozen", "backbone", "--dir", tmp_path / "task"]
    done = door("finetune", tmp_path / "gpt", "--task.kind", "classify", *files, *more)
    assert done.returncode == 0, done.stderr
    (_, before, old), (_, after, new) = (contexture.load(tmp_path / name) for name in ("gpt", "task"))
    assert new.size == old.size + 3 <= 90 and f"grown  backbone/embeddings/tokens  {old.size}×16 → 90×16" in done.stderr
    tables = [np.asarray(params["backbone"]["embeddings"]["tokens"]) for params in (before, after)]
    assert "3 new token embeddings are frozen at their random initial values" in done.stderr
    assert np.array_equal(tables[1][: old.size], tables[0][: old.size])
    fresh = tables[1][old.size : new.size]
    assert np.abs(fresh - tables[0][old.size : new.size]).max() > 1e-3 and 0.01 < fresh.std() < 0.03
