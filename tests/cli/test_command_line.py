"""The command line: results to stdout, one clear line for every mistake, exit codes that scripts can rely on."""

import functools
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest

import contexture
from contexture.cli import main as cli
from contexture.cli.commands import COMMANDS
from contexture.configs import recipes
from contexture.data.config import DataConfig
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.registry import load_tokenizer
from tests.conftest import ROOT, TINY
from tests.helpers.commands import run_command
from tests.helpers.long import long

pytestmark = pytest.mark.usefixtures("one_device")


def last_line_of(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """(exit code, the last line on stderr) of one command in this process."""
    code = cli.main([str(word) for word in words])
    lines = capsys.readouterr().err.strip().splitlines()
    return code, lines[-1] if lines else ""


def pretrain(*words: object) -> list[str]:
    return ["pretrain", "bert.tiny", *TINY, *map(str, words)]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--optim.peek-lr", "1"], "unrecognised option --optim.peek-lr (did you mean --optim.peak-lr?)"),
        (["--steps", "many"], "--steps wants a whole number, not 'many'"),
        (["--model.hidden", "30", "--model.heads", "4"], "model.hidden=30 is not a multiple of model.heads=4"),
        (["--data.length", "600"], "data.length=600 exceeds model.length=512; lower data.length or raise model.length"),
        (["--data.dev", "a", "--data.dev-fraction", "0.1"], "data.dev and data.dev-fraction both hold out text"),
        (["--model.remat", "full", "--model.unroll", "2"], "model.remat=full needs the layer loop"),
        (["--optim.schedule", "bert", "--optim.final-lr", "0.1"], "optim.final-lr=0.1 contradicts optim.schedule=bert"),
        (["--data.batch", "15", "--optim.accumulate", "2"], "data.batch=15 is not a multiple of optim.accumulate=2"),
        (["--mesh.fsdp", "3"], "mesh data × fsdp × tensor = 1 × 3 × 1 = 3 does not fit 1 device"),
        (["--data.path", "/nowhere.txt"], "/nowhere.txt: data.path names no such file"),
        ([], "data.path is empty; give the text to train on"),
        (["--optim.clip", "-1"], "optim.clip=-1.0 is not at least 0"),
        (["--optim.peak-lr", "nan"], "optim.peak-lr=nan is not above 0"),
        (["--optim.b2", "1"], "optim.b2=1.0 is not at least 0 and below 1"),
        (["--optim.eps", "0"], "optim.eps=0.0 is not above 0"),
        (["--optim.layer-decay", "0"], "optim.layer-decay=0.0 is not above 0 and at most 1"),
        (["--steps", "0"], "steps=0 and epochs=0.0 do not say how long; give one of them"),
        (["--task.train", "a.tsv"], "reads text and no task; contexture finetune RUN --task.train"),
        (["--model.init-std", "-1"], "model.init-std=-1.0 is not above 0"),
        (["--evaluate.batch", "-16"], "evaluate.every, evaluate.batch and evaluate.patience must be at least 0"),
    ],
)
def test_words_that_are_wrong_give_one_clear_line(capsys, tmp_path, words, line):
    code, last = last_line_of(capsys, *pretrain("--dir", tmp_path / "run", *words))
    assert code == 2 and line in last, last
    assert not any(tmp_path.iterdir())


def test_unknown_commands_and_recipes_are_guessed(capsys):
    assert last_line_of(capsys, "pretrian", "bert.tiny")[1].endswith(
        "(did you mean pretrain?); contexture --help lists them"
    )
    code, last = last_line_of(capsys, "pretrain", "bert.tinny")
    assert code == 2 and "did you mean bert.tiny?" in last
    assert last_line_of(capsys, "pretrain")[0] == 2
    assert last_line_of(capsys, *pretrain()) == (
        2,
        "ConfigError: dir is empty; say where the run shall live: --dir RUN",
    )


@pytest.mark.parametrize(
    ("content", "line", "tried"),
    [
        (b"", "the file is empty", False),
        (b"good line\nbad \xff line\n", "text.txt:2: not UTF-8 (byte 0xff at column 5)", False),
        ("A text.\n".encode("utf-16"), "text.txt: UTF-16 by its first bytes, and text is UTF-8; save it so", False),
        (b"a good line\n" * 10_000 + b"\xff", "text.txt:10001: not UTF-8 (byte 0xff at column 1)", True),
        (b"Only one sentence here.\n\nAnd one more.\n", "no document", True),
    ],
)
def test_files_that_are_wrong_give_one_clear_line(capsys, tmp_path, content, line, tried):
    """What is wrong at a file's beginning is refused before the run's folder is made."""
    (tmp_path / "text.txt").write_bytes(content)
    code, last = last_line_of(capsys, *pretrain("--dir", tmp_path / "run", "--data.path", tmp_path / "text.txt"))
    assert code == 2 and line in last, last
    assert (tmp_path / "run").exists() == tried


def test_a_first_command_that_failed_does_not_bind_the_next(capsys, tmp_path, text_folder):
    """The same file, mended: nothing that was learned on what it held before is used."""
    text, folder = tmp_path / "text.txt", tmp_path / "run"
    text.write_bytes(b"Only one sentence here.\n\nAnd one more.\n")
    words = pretrain("--dir", folder, "--data.path", text, "--data.dev-fraction", "0.2")
    assert last_line_of(capsys, *words)[0] == 2
    last = last_line_of(capsys, "export", folder, "hf", "--to", tmp_path / "out")[1]
    assert last == f"ConfigError: {folder} holds no checkpoint yet; train it first"
    text.write_bytes((text_folder / "text0.txt").read_bytes())
    code, last = last_line_of(capsys, *words, "--evaluate.metric", "bleu")  # refused once the vocabulary is learned
    assert code == 2 and "evaluate.metric=bleu" in last, last
    assert len((folder / "tokenizer" / "vocab.txt").read_text().splitlines()) > 100


def test_a_folder_where_nothing_was_trained_starts_over(capsys, tmp_path, text_folder):
    """Also where the text was prepared, and other settings are wanted now."""
    words = pretrain(
        "--dir", tmp_path / "run", "--data.path", text_folder, "--steps", "6", "--data.dev-fraction", "0.2"
    )
    code, last = last_line_of(capsys, *words, "--evaluate.metric", "bleu")
    assert code == 2 and "evaluate.metric=bleu is not measured" in last, last
    assert cli.main([*words, "--seed", "5", "--evaluate.metric", "bleu"]) == 2
    stderr = capsys.readouterr().err
    assert "has other settings (--seed" in stderr and "and no training steps yet; starting over" in stderr, stderr


def test_a_folder_that_holds_other_things_is_left_alone(capsys, tmp_path, text_folder, monkeypatch):
    shutil.copytree(text_folder, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    for words in (["--dir", "."], ["--dir", ".", "--data.dev-fraction", "0.1"]):
        code, last = last_line_of(capsys, *pretrain("--data.path", "data", *words))
        assert code == 2 and "holds data and no run.json" in last, last
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data"]


def test_another_model_in_an_old_folder_is_refused_by_name(capsys, tiny_words, tiny_run):
    before = (tiny_run / "run.json").read_bytes()
    for words, name in (
        (["--model.hidden", "64"], "--model.hidden 32, not 64"),
        (["--data.batch", "32"], "--data.batch 16, not 32"),
        (["--seed", "1"], "--seed 0, not 1"),
        (["--optim.peak-lr", "1"], "--optim.peak-lr 0.002, not 1.0"),
        (["--steps", "30"], "--steps 40, not 30; a run can only be made longer"),
    ):
        code, last = last_line_of(capsys, *tiny_words, "--dir", tiny_run, *words)
        assert code == 2 and f"holds a run {'of' if 'steps' in name else 'with'} {name}" in last, last
    assert (tiny_run / "run.json").read_bytes() == before


def test_another_vocabulary_in_an_old_folder_is_refused(capsys, tiny_words, tiny_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(tiny_run, folder)
    vocabulary = folder / "tokenizer" / "vocab.txt"
    pieces = vocabulary.read_text().splitlines()
    vocabulary.write_text("\n".join([*pieces[:-2], pieces[-1], pieces[-2]]) + "\n")
    code, last = last_line_of(capsys, *tiny_words, "--dir", folder)
    assert code == 2 and "the tokenizer is not the one that this run was started with" in last, last
    with pytest.raises(cli.ConfigError, match="not the vocabulary that this run was trained with"):
        contexture.load(folder)


def test_a_vocabulary_larger_than_the_model_is_refused(capsys, tmp_path, text_folder):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(200))]))
    words = pretrain("--dir", tmp_path / "run", "--data.path", text_folder, "--data.tokenizer", vocabulary)
    code, last = last_line_of(capsys, *words)
    assert code == 2 and "the vocabulary has 205 tokens, more than model.vocab=150" in last, last


def test_text_that_changed_is_refused(capsys, tmp_path, text_folder, tiny_words, start_only):
    folder, text = tmp_path / "run", tmp_path / "text"
    shutil.copytree(text_folder, text)
    words = [w if w != str(text_folder) else text for w in tiny_words]
    assert cli.main([*map(str, words), "--steps", "6", "--dir", str(folder)]) == 130
    with open(text / "text0.txt", "a") as file:
        file.write("More.\n")
    code, last = last_line_of(capsys, *words, "--steps", "6", "--dir", folder)
    assert code == 2 and "text0.txt has" in last, last


def test_two_runs_in_one_folder_at_once_are_refused(door, capsys, tiny_words, tmp_path):
    first = door(*tiny_words, "--steps", "4000", "--dir", tmp_path / "run", wait=False)
    while not (tmp_path / "run" / "run.json").exists():
        time.sleep(0.05)
    code, last = last_line_of(capsys, *tiny_words, "--dir", tmp_path / "run")
    first.kill()
    first.communicate()
    assert code == 2 and f"is in use by process {first.pid}" in last, last


def test_a_folder_that_cannot_be_written_is_refused(capsys, tiny_words):
    if not Path("/sys").is_dir():
        pytest.skip("needs Linux's /sys, which not even root may write")
    code, last = last_line_of(capsys, *tiny_words, "--dir", "/sys/run")
    assert code == 1 and last.startswith("CheckpointError: /sys/run cannot be written"), last


@pytest.mark.long
def test_a_full_disk_is_one_clear_line_and_loses_nothing(environment, capsys, tiny_words, tmp_path):
    """The largest file that may be written is smaller than a checkpoint's."""
    command = f"exec {sys.executable} -m contexture {' '.join(tiny_words)} --dir {tmp_path / 'run'}"
    full = ["bash", "-c", "ulimit -f 50; " + command]
    limited = subprocess.run(full, capture_output=True, text=True, timeout=200, env=environment(1))
    assert limited.returncode == 1, limited.stderr
    last = limited.stderr.strip().splitlines()[-1]
    assert last.startswith("CheckpointError: ") and "the disk is full; there is no checkpoint yet" in last
    assert "Traceback" not in limited.stderr
    assert cli.main([*tiny_words, "--dir", str(tmp_path / "run")]) == 0
    assert "starting at step 0" in capsys.readouterr().err


@pytest.mark.long
def test_a_run_that_diverges_stops_with_its_last_good_checkpoint(capsys, tiny_words, tmp_path):
    words = [*tiny_words, "--optim.peak-lr", "1e18", "--optim.warmup", "0", "--save.every", "1", "--log.every", "1",
             "--optim.clip", "0", "--optim.max-skipped", "5", "--dir", tmp_path / "run"]  # fmt: skip
    code, last = last_line_of(capsys, *words)
    assert code == 1 and "were not finite in the 5 steps up to step" in last, last
    folder = tmp_path / "run" / "checkpoints"
    assert any(folder.iterdir())


def test_evaluate_fits_the_devices_and_says_what_it_fell_back_from(capsys, tiny_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(tiny_run, folder)
    described = json.loads((folder / "run.json").read_text())
    described["config"]["mesh"]["fsdp"] = 16
    (folder / "run.json").write_text(json.dumps(described))
    digest = folder / "checkpoints" / "40" / "digest" / "metadata"
    digest.write_text(digest.read_text().replace("1", "2", 1))
    assert cli.main(["evaluate", str(folder), "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["step"] == 30 and "warning: checkpoint of step 40: item digest" in output.err


def test_commands_check_where_they_write_before_they_work(capsys, tmp_path, text_folder):
    (tmp_path / "file").write_text("x")
    for to in (text_folder, tmp_path / "file", tmp_path / "file" / "below"):
        for words in (["tokenizer", "wordpiece"], ["prepare", "bert.tiny"]):
            code, last = last_line_of(capsys, *words, "--input", text_folder, "--to", to)
            assert code == 2 and str(to) in last, last
    words = ["prepare", "bert.tiny", "--input", text_folder, "--to", tmp_path / "x", "--dev-fraction", 2]
    code, last = last_line_of(capsys, *words)
    assert code == 2 and "data.dev-fraction=2.0 is not in [0, 1)" in last


@pytest.mark.parametrize("alone", [False, *long(True)])
def test_json_alone_goes_to_stdout(capfd, door, tiny_run, alone):
    """Also of a process of its own, with all that its start may print."""
    if alone:
        result = json.loads(door("evaluate", tiny_run, "--json").stdout)
    else:
        assert cli.main(["evaluate", str(tiny_run), "--json"]) == 0
        result = json.loads(capfd.readouterr().out)
    assert set(result) == {"run", "step", "split", "examples", "metrics"}
    assert result["step"] == 40 and result["split"] == "dev" and result["examples"] > 0
    assert {"loss", "mlm_accuracy", "nsp_accuracy", "unigram_loss", "unigram_accuracy"} <= set(result["metrics"])
    records = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    held = [r for r in records if r["split"] == "dev"][-1]
    assert result["metrics"]["loss"] == pytest.approx(held["loss"], rel=1e-6)


def test_commands_without_a_model_import_no_jax():
    """All of them, one after the other in one process."""
    commands = (
        ["--help"],
        ["recipes"],
        ["recipes", "--json"],
        ["pretrain", "bert.tiny", "--help"],
        ["pretrain", "elmo.tiny", "--help", "all"],
        ["finetune", "--help"],
        ["evaluate", "--help"],
        ["--version"],
        ["completion", "bash"],
        ["completion", "--words", "pretrain", "bert.tiny", "--op"],
    )
    code = "import sys; from contexture.cli import main as cli\n"
    code += f"for words in {commands!r}: print('>', cli.main(words), 'jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    printed = re.split(r"^> (.*)\n", done.stdout, flags=re.M)
    assert done.returncode == 0 and printed[1::2] == ["0 False"] * len(commands), (printed[1::2], done.stderr)
    assert all(page.strip() for page in printed[0:-1:2])


def test_every_recipe_says_its_command_and_what_to_expect():
    for name, function in recipes().items():
        assert f"contexture pretrain {name} --dir" in (function.__doc__ or ""), name
        doc = str(function.__doc__)
        assert "Expect" in doc or "Not yet run" in doc, name


def test_a_gpt_is_not_begun_on_word_pieces(capsys, tmp_path, text_folder, tiny_run):
    """However they come: learned, given, or in shards."""
    file, line = tiny_run / "tokenizer", "no gpt should start with a vocabulary of kind wordpiece"

    def refused(*words):
        code, last = last_line_of(capsys, *words)
        assert code == 2 and line in last

    refused("prepare", "gpt.tiny", "--input", text_folder, "--to", tmp_path / "x", "--tokenizer", file)
    words = ["pretrain", "gpt.tiny", "--dir", tmp_path / "run", "--data.path"]
    refused(*words, text_folder, "--data.vocabulary", "wordpiece")
    refused(*words, text_folder, "--data.tokenizer", file)
    shards = prepare(DataConfig(path=(str(text_folder),)), load_tokenizer(file), tmp_path / "shards", stream="windows")
    refused(*words, shards.folder)


def test_tokenizer_prepare_and_pretrain_from_shards(capsys, tmp_path, text_folder, start_or_run):
    words = [
        "tokenizer",
        "wordpiece",
        "--input",
        text_folder,
        "--vocab-size",
        120,
        "--to",
        tmp_path / "words",
        "--json",
    ]
    assert cli.main([*map(str, words)]) == 0
    assert json.loads(capsys.readouterr().out)["vocab_size"] <= 120
    words = ["prepare", "bert.tiny", "--input", text_folder, "--to", tmp_path / "shards", "--dev-fraction", 0.2,
             "--tokenizer", tmp_path / "words", "--json"]  # fmt: skip
    assert cli.main([*map(str, words)]) == 0
    assert json.loads(capsys.readouterr().out)["dev"]["documents"] > 0
    assert (
        cli.main([*pretrain("--dir", tmp_path / "run", "--data.path", tmp_path / "shards", "--steps", 6)])
        == start_or_run
    )
    assert not (tmp_path / "run" / "data").exists()
    code, last = last_line_of(capsys, *words)
    assert code == 2 and "already holds something" in last


def test_show_and_load_open_a_run(capsys, tiny_run):
    assert cli.main(["show", str(tiny_run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["config"]["model"]["hidden"] == 32
    from contexture.data.layouts import bert_texts

    model, params, tokenizer = contexture.load(tiny_run)
    batch = bert_texts(tokenizer, ["The cat sees the river.", ("One old man.", "He likes a red house.")], 16)
    apply: Any = jax.jit(functools.partial(model.apply, states=True))
    out = apply({"params": params}, {**batch, "slots": batch["tokens"][:, :2]})
    assert out.encoding.hidden_BLD.shape == (2, 16, 32) and len(out.encoding.states) == 3


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistake_is_told_by_the_name_of_its_command(name: str, capsys):
    code, err = run_command(capsys, name, "--jsno")
    assert code == 2 and re.match(rf"ConfigError: {name}(:| needs| wants) ", err), err
    assert name in re.findall(r"contexture (\w+)", err) or "--help lists what it takes" in err
