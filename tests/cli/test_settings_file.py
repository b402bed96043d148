"""--config FILE: settings of a run from a file, replaced by what the command line says."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from contexture.cli.argv import take_option
from contexture.cli.settings_file import read_settings, with_settings
from contexture.cli.training_commands import _finetuning, _recipe
from contexture.configs import recipe
from contexture.train.errors import ConfigError
from contexture.train.settings.run_file import read, to_json
from tests.train.run.test_formats import GOLDEN

BERT = recipe("bert.tiny")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def settings(name: str, content: str):
    Path(name).write_text(content)
    return with_settings(BERT, read_settings(name), name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.yaml", "steps: 7\noptim:\n  peak-lr: 1e-3\n  no_decay: [bias]\ndata.path: text/\nhead.mix: off\n"),
        ("a.yaml", "steps: 7\noptim.peak_lr: .001\noptim.no-decay: bias\ndata: {path: [text/]}\n"),
        ("a.json", '{"steps": 7, "optim": {"peak_lr": 1e-3, "no_decay": ["bias"]}, "data": {"path": "text/"}}'),
    ],
)
def test_names_are_nested_or_dotted_with_the_command_lines_values(name, content):
    if "head.mix" in content:
        content = content.replace("head.mix: off\n", "")
    run = settings(name, content)
    assert (run.steps, run.optim.peak_lr, run.optim.no_decay, run.data.path) == (7, 1e-3, ("bias",), ("text/",))
    assert run.model == BERT.model and run.optim.clip == BERT.optim.clip


def test_words_that_yaml_takes_for_truth_values_stay_words():
    Path("a.yaml").write_text("a: off\nb: yes\nc: true\nd: 1e-4\ne: 3\nf: 1e4\ng: 2026-01-01\nh: -.5\n")
    assert read_settings("a.yaml") == {"a": "off", "b": "yes", "c": True, "d": 1e-4, "e": 3, "f": 1e4,
                                       "g": "2026-01-01", "h": -0.5}  # fmt: skip


def test_numbers_are_those_of_yaml_1_2():
    Path("a.yaml").write_text("a: 0100\nb: 0o17\nc: 0x10\nd: 1:30\ne: -.inf\nf: 1_000\ng: +5\nh: 5.\ni: 0b1\nj: <<\n")
    assert read_settings("a.yaml") == {"a": 100, "b": 15, "c": 16, "d": "1:30", "e": -math.inf, "f": "1_000",
                                       "g": 5, "h": 5.0, "i": "0b1", "j": "<<"}  # fmt: skip


def test_lines_of_aliases_cost_nothing():
    lines = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    with pytest.raises(ConfigError, match="anchors, aliases and tags"):
        settings("a.yaml", lines)


def test_the_command_line_replaces_the_file_which_replaces_the_recipe():
    Path("a.yaml").write_text("steps: 7\nseed: 3\noptim.warmup: 5\n")
    run, base, _ = _recipe(["bert.tiny", "--config", "a.yaml", "--seed", "4", "--lr", "0.5"], "pretrain")
    assert (run.steps, run.seed, run.optim.peak_lr, run.optim.warmup) == (7, 4, 0.5, 5) and base == BERT
    run, _, _ = _recipe(["bert.tiny", "--config=a.yaml", "--epochs", "2"], "pretrain")
    assert (run.steps, run.epochs) == (0, 2.0)


def test_a_run_json_gives_its_settings_but_for_its_folder():
    golden = read(GOLDEN / "bert").run
    run, _, _ = _recipe(["bert.tiny", "--config", str(GOLDEN / "bert" / "run.json"), "--dir", "new"], "pretrain")
    expected = to_json(golden)
    assert {**to_json(run), "dir": ""} == {**expected, "dir": ""} and run.dir == "new"


def test_a_fine_tuning_takes_its_task_from_a_file():
    Path("train.tsv").write_text("text\tlabel\na film\tgood\na bore\tbad\n")
    Path("a.yaml").write_text("task: {kind: classify, train: train.tsv}\nepochs: 2\n")
    run, *_ = _finetuning([str(GOLDEN / "bert"), "--config", "a.yaml", "--dir", "new"])
    assert (run.task.kind, run.task.train, run.epochs, run.init.run) == (
        "classify", ("train.tsv",), 2.0, str(GOLDEN / "bert")
    )  # fmt: skip


def test_a_fine_tuning_repeats_from_its_own_run_json(tmp_path):
    """Its steps took the place of the recipe's epochs, and both stand in the file."""
    Path("train.tsv").write_text("text\tlabel\na film\tgood\na bore\tbad\n")
    words = [str(GOLDEN / "bert"), "--dir", "new"]
    more = ["--task.kind", "classify", "--task.train", "train.tsv", "--steps", "12"]
    run = _finetuning([*words, *more])[0].run
    Path("new").mkdir()
    Path("new/run.json").write_text(json.dumps({"format": 2, "config": to_json(run)}))
    again = _finetuning([*words, "--config", "new/run.json"])[0].run
    assert again == run and run.epochs and run.steps == 12
    longer = _finetuning([*words, "--config", "new/run.json", "--epochs", "2"])[0].run
    assert longer == dataclasses.replace(run, steps=0, epochs=2.0)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.yaml", "optim: {peek-lr: 1}", "a.yaml: there is no option 'optim.peek_lr' (did you mean optim.peak_lr?)"),
        ("a.yaml", "lr: 1", "a.yaml: there is no option 'lr' (did you mean optim.peak_lr?)"),
        (
            "a.yaml",
            "data.documents: files",
            "a.yaml: data.documents has no meaning for pretraining a BERT; leave it out",
        ),
        ("a.yaml", "data.negatives: 5", "a.yaml: --data.negatives is for pretraining an ELMo, and has no meaning for"),
        ("a.yaml", "steps: many", "a.yaml: steps is 'many', not a whole number"),
        (
            "a.yaml",
            "optim.name: adam",
            "a.yaml: optim: name is 'adam', not one of bert, adamw, gpt1, lamb, adafactor, adagrad",
        ),
        ("a.yaml", "steps:", "a.yaml: steps has no value; give it one, or leave it out"),
        ("a.yaml", "optim: {b1: .5}\noptim.b1: .6", "a.yaml: optim.b1 is given twice; give it once"),
        ("a.yaml", "3: 4", "a.yaml: 3 is no name of an option"),
        ("a.yaml", "- steps", "a.yaml holds a list, not names and values; write `steps: 1000`, a line each"),
        ("a.yaml", "", "a.yaml holds nothing, not names and values"),
        ("a.yaml", "steps: [1", "a.yaml:1: no YAML: expected ',' or ']'"),
        ("a.yaml", "steps: !!python/object:x {}", "a.yaml:1: no YAML: anchors, aliases and tags (& * !) are not read"),
        ("a.yaml", "steps: !!bool maybe", "a.yaml:1: no YAML: anchors, aliases and tags (& * !) are not read"),
        ("a.yaml", "optim: &a\n  x: *a", "a.yaml:1: no YAML: anchors, aliases and tags (& * !) are not read"),
        ("a.yaml", "seed: 1\nsteps: *a", "a.yaml:2: no YAML: anchors, aliases and tags (& * !) are not read"),
        ("a.yaml", "steps: 5\nsteps: 10", "a.yaml: steps is given twice; give it once"),
        ("a.yaml", "optim: {b1: .5}\noptim: {b2: .6}", "a.yaml: optim is given twice; give it once"),
        ("a.yaml", "optim: {peak-lr: .5, peak_lr: .6}", "a.yaml: optim.peak_lr is given twice; give it once"),
        ("a.json", '{"optim": {"b1": 0.5, "b1": 0.6}}', "a.json: optim.b1 is given twice; give it once"),
        ("a.yaml", "steps: 1:30", "a.yaml: steps is '1:30', not a whole number"),
        ("a.yaml", "data.path: [{a: 1}]", "a.yaml: data: path is an object, not a text"),
        ("a.yaml", "{a: 1}: 2", "a.yaml: an object is no name of an option"),
        ("a.yaml", "steps: " + "9" * 5000, "a.yaml: a number has thousands of digits"),
        ("a.json", '{"a":' * 20_000 + "1" + "}" * 20_000, "a.json: its lists and objects are nested too deep"),
        ("a.yaml", "a: \x01", "a.yaml: no YAML: a character that YAML does not know"),
        ("a.json", '{"steps": 1,}', "a.json:1: no JSON: "),
        ("a.json", "[" * 100_000, "a.json: its lists and objects are nested too deep"),
        ("a.json", json.dumps({"model": {"family": "gpt"}}), "a.json is for the family gpt, and this is a run of"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_that_names_it(name, content, line):
    with pytest.raises(ConfigError) as caught:
        settings(name, content)
    assert str(caught.value).startswith(line) and len(str(caught.value).splitlines()) == 1


def test_a_file_that_is_none_is_one_line():
    Path("folder").mkdir()
    Path("bytes.yaml").write_bytes(b"steps: \xff")
    for name, line in (
        ("no.yaml", "--config no.yaml: no such file"),
        ("folder", "--config folder is a folder; give a file, as folder/run.json"),
        ("bytes.yaml", "bytes.yaml: not UTF-8"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_settings(name)
        assert str(caught.value).startswith(line)


def test_an_option_is_taken_out_of_the_arguments():
    assert take_option(["a", "--config", "f", "b"], "--config") == ("f", ["a", "b"])
    assert take_option(["a", "--config=f", "b"], "--config") == ("f", ["a", "b"])
    assert take_option(["a"], "--config") == ("", ["a"])
    for argv in (["--config"], ["--config", "--lr"], ["--config", "a", "--config", "b"]):
        with pytest.raises(ConfigError, match="--config (wants a value|is given twice)"):
            take_option(argv, "--config")
