"""An ELMo from a run to a task: words read by their letters, a mix of layers, and answers to other files."""

import json
from pathlib import Path

import numpy as np
import pytest

import contexture
from contexture.cli import main as cli
from contexture.data.config import DataConfig, TaskConfig
from contexture.data.packing import apart
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tokenizers.elmo_char_ids import words_from_char_ids
from contexture.data.tokenizers.word_level import Words
from contexture.models.config import ElmoConfig, GptConfig, HeadConfig
from contexture.train.objectives import objective_of
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import read
from tests.helpers.parity_rule import worst

pytestmark = pytest.mark.usefixtures("one_device")

ELMO = Path(__file__).parents[1] / "golden" / "elmo"
WORDS = Words(["<S>", "</S>", "<UNK>", "the"], "punctuation")


def _store(tmp_path: Path, task: TaskConfig):
    return encode(task, WORDS, tmp_path / "data")


def test_words_come_back_as_they_stand_with_their_tags(tmp_path: Path):
    """Also those that the vocabulary lacks, and those that raw text would part."""
    lines = [[("Don't", "V"), ("…?!", "P"), ("stop", "V")], [("x" * 60, "N")], [("the", "D"), ("the", "D")]]
    rows = ["".join(f"{word}\t{tag}\n" for word, tag in line) for line in lines]
    (tmp_path / "t.conll").write_text("\n".join(rows), "utf-8")
    store = _store(tmp_path, TaskConfig(kind="tag", train=(str(tmp_path / "t.conll"),)))
    config = DataConfig(batch=3, length=8, max_predictions=1, vocabulary="words")
    held_out = HeldOutTask(store.splits["train"], WORDS, config, 4, family="elmo")
    batch = apart(held_out.read(0))
    for row, line in enumerate(lines):
        inside = batch["mask"][row] > 0
        words = words_from_char_ids(batch["types"][batch["index"][row][inside]])
        assert words == [word[:48] for word, _ in line]
        assert [store.labels[tag] for tag in batch["tags"][row][inside]] == [tag for _, tag in line]
        assert (batch["tags"][row][~inside] == -1).all() and not batch["index"][row][~inside].any()
    spare = held_out.batch - 3
    assert batch["valid"].tolist() == [1, 1, 1] + [0] * spare and not batch["mask"][3:].any()
    training = TaskBatches(store, WORDS, config, TaskConfig(kind="tag"), seed=0, family="elmo")
    whole, part = apart(training.read(0)), apart(training.read(0, np.array([2, 0])))
    for name, x in whole.items():
        assert np.array_equal(part[name], x if name == "types" else x[[2, 0]])


def test_words_to_tag_may_hold_white_space_and_long_ones_are_counted(tmp_path: Path):
    words = ["a\nb", "cat", "two words", "x" * 60]
    lines = [json.dumps({"words": words[at:] + words[:at], "tags": ["X", "Y", "X", "Y"]}) for at in range(4)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    store = _store(tmp_path, TaskConfig(kind="tag", train=(str(tmp_path / "t.jsonl"),)))
    config = DataConfig(batch=4, length=8, max_predictions=1, vocabulary="words")
    batch = apart(HeldOutTask(store.splits["train"], WORDS, config, 4, family="elmo").read(0))
    assert words_from_char_ids(batch["types"][batch["index"][0]][:4]) == [*words[:3], "x" * 48]
    description = TaskBatches(store, WORDS, config, TaskConfig(kind="tag"), seed=0, family="elmo").describe()
    assert "; 1 word longer than 48 bytes, cut; 4 rows of 8 tokens a batch" in description, description


def test_a_pair_has_two_lines_and_a_long_text_is_cut(tmp_path: Path):
    (tmp_path / "p.tsv").write_text("a\tb\tlabel\nthe cat sat on a mat\tno!\tx\none\ttwo three\ty\n", "utf-8")
    task = TaskConfig(kind="classify", train=(str(tmp_path / "p.tsv"),), text="a", second="b")
    store = _store(tmp_path, task)
    config = DataConfig(batch=2, length=6, max_predictions=1, vocabulary="words", word_types=4)
    split = store.splits["train"]
    assert split.longest == 6 and (split.longer_than(8), split.longer_than(7)) == (0, 1)
    batch = apart(HeldOutTask(split, WORDS, config, 2, family="elmo").read(0))
    assert batch["index"].shape == (2, 2, 4) and len(batch["types"]) == 16  # 4, doubled twice
    lines = [[words_from_char_ids(batch["types"][i[m > 0]]) for i, m in zip(*line, strict=True)] for line in
            zip(batch["index"], batch["mask"], strict=True)]  # fmt: skip
    assert lines == [[["the", "cat", "sat", "on"], ["no", "!"]], [["one"], ["two", "three"]]]


@pytest.fixture(scope="module")
def tagger(trained_run, elmo_run: Path, task_files: Path) -> Path:
    words = ["finetune", str(elmo_run), "--task.kind", "tag", "--task.train", str(task_files / "tag.train.conllu"),
             "--task.dev", str(task_files / "tag.dev.conllu"), "--head.cells", "6", "--head.crf",
             "--head.mix-l2", "0.01", "--head.place", "both", "--steps", "60", "--optim.peak-lr", "2e-2",
             "--data.batch", "16", "--data.word-types", "64"]  # fmt: skip
    return trained_run("elmo_tag", words)


@pytest.mark.long
def test_a_tagger_learns_and_tells_what_each_layer_counts(tagger: Path, tmp_path: Path, capsys):
    figures = contexture.evaluate(tagger)["metrics"]
    assert figures["accuracy"] > figures["majority_accuracy"] + 0.3 and figures["mix_penalty"] >= 0
    assert cli.main(["layers", str(tagger), "--to", str(tmp_path / "mix.png"), "--json"]) == 0
    mixes = json.loads(capsys.readouterr().out)["mixes"]
    assert [mix["place"] for mix in mixes] == ["input", "output"]
    assert all(sum(mix["weights"]) == pytest.approx(1.0) for mix in mixes)
    assert worst(abs(mix["gamma"] - 1.0) for mix in mixes) > 0 and (tmp_path / "mix.png").stat().st_size > 1000


@pytest.mark.long
def test_a_tagger_learns_further_with_the_head_it_has(tagger: Path, task_files: Path, tmp_path: Path, capsys):
    """On the same tags it is kept; another head is refused; from scratch the biLM is trained too."""
    words = ["finetune", str(tagger), "--task.kind", "tag", "--task.train", str(task_files / "tag.train.conllu"),
             "--steps", "2", "--data.batch", "16", "--data.word-types", "64"]  # fmt: skip
    assert cli.main([*words, "--dir", str(tmp_path / "on")]) == 0
    assert "kept heads_tag/…" in " ".join(capsys.readouterr().err.split())
    assert cli.main([*words, "--dir", str(tmp_path / "other"), "--head.cells", "5"]) == 2
    assert "give the same head, or --init.drop-heads" in capsys.readouterr().err
    assert cli.main([*words, "--dir", str(tmp_path / "new"), "--init.random"]) == 0
    model = read(tmp_path / "on").run.model
    assert isinstance(model, ElmoConfig) and model.dropout == 0.0 and read(tmp_path / "new").run.optim.frozen == ()


@pytest.mark.long
def test_a_tagger_answers_words_it_has_never_seen(tagger: Path):
    [answer] = contexture.predict(tagger, [["the", "zzz", "sees", "two", "apples"]])
    assert len(answer["predictions"]) == 5 and answer["predictions"][0] == "DET"


@pytest.mark.long
def test_the_biLM_stays_as_it_was(tagger: Path, elmo_run: Path):
    import jax

    before, after = (contexture.load(folder)[1]["backbone"] for folder in (elmo_run, tagger))
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True))


def test_the_softmax_has_a_row_for_each_word_and_no_more():
    """Rows without a word would never be told from one in training, and count in what is held out."""
    _, params, tokenizer = contexture.load(ELMO)
    assert len(params["heads_bilm"]["bias"]) == tokenizer.size == read(ELMO).run.model.vocab
    assert json.loads((ELMO / "run.json").read_text())["config"]["model"]["vocab"] > tokenizer.size


def test_a_penalty_on_the_mix_stands_beside_a_gpts_words():
    run = Run(
        model=GptConfig(),
        task=TaskConfig(kind="classify", lm_weight=0.5),
        head=HeadConfig(mix="all", mix_l2=0.1),
    )
    assert objective_of(run).terms == {"classify_loss": 1.0, "lm_loss": 0.5, "mix_penalty": 0.1}


def test_a_chain_is_an_elmos():
    """A BERT's line has pieces between its words that bear no tag."""
    with pytest.raises(ValueError, match="head.crf scores the tags of an ELMo"):
        Run(task=TaskConfig(kind="tag"), head=HeadConfig(mix="all", crf=True))


def test_mistakes_are_one_line(task_files: Path, tmp_path: Path, capsys):
    train = str(task_files / "tag.train.conllu")
    finetune = ["finetune", str(ELMO), "--task.kind", "tag", "--task.train", train, "--dir", str(tmp_path / "x")]
    for words, message in (
        ([*finetune, "--head.mix", "off"], "has no meaning for head.mix=off"),
        ([*finetune, "--head.crf", "--task.class-weights", "balanced"], "head.crf scores the tags"),
        ([*finetune, "--head.mix", "top", "--head.mix-l2", "0.1"], "head.mix-l2=0.1 has no meaning for head.mix=top"),
        ([*finetune, "--model.stateful"], "model.stateful has no meaning for a task"),
        ([*finetune, "--optim.layer-decay", "0.5"], "optim.layer-decay has no meaning where optim.frozen=backbone"),
        (["pretrain", "elmo.tiny", "--head.mix", "all"], "head.mix=all has no meaning for task.kind=off"),
        (["layers", str(ELMO)], "mixes no layers"),
        (["layers"], "layers needs runs"),
        (["layers", str(ELMO), "--to", "x.gif"], "x.gif: a figure ends in .png, .svg or .pdf"),
        (["fill", str(ELMO), "--text", "a [MASK]"], "not an ELMo, which gives vectors"),
    ):
        assert cli.main(words) == 2, words
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert message in error and "unexpected error" not in error, error
