"""An option that has no effect, as the others stand, is refused: of a run by what it needs, of a command by its
request."""

import contextlib
import re
import sys
from dataclasses import replace
from typing import Any

import pytest

import contexture
from contexture import requests
from contexture.cli import main as cli
from contexture.configs import recipe, task
from contexture.configs.finetuning import finetune_run
from contexture.models.config import VectorsConfig
from contexture.option_scope import _NEEDS, _SCOPES, check_effects, check_scope
from contexture.overrides import with_options
from contexture.train.errors import ConfigError
from contexture.train.evaluation.request import EvaluationOptions
from contexture.train.settings.run import Run, fields
from tests.train.run.test_formats import GOLDEN

BERT, GPT, ELMO = recipe("bert.tiny"), recipe("gpt.tiny"), recipe("elmo.tiny")
TASK = finetune_run(BERT, "run", "classify")
GPT_TASK = finetune_run(GPT, "run", "classify", task_vocabulary=GPT.model.vocab)
FROZEN = {"optim.frozen": "backbone"}
PHASES = {"data.phases": "16x8:4 32x8:4", "optim.phase_lr": [1e-3, 1e-3]}
WARMED = {**PHASES, "optim.phase_warmup": [1, 1]}
CASES: dict[str, tuple[Run, Any, dict[str, Any], dict[str, Any]]] = {
    # option: (a run, another value than the default, settings that leave it without effect, settings that give it one)
    "optim.peak_lr": (BERT, 1.0, PHASES, {}),
    "optim.warmup": (BERT, 3, WARMED, PHASES),
    "optim.warmup_fraction": (BERT, 0.3, WARMED, PHASES),
    "optim.lora_alpha": (TASK, 16.0, {}, {"optim.lora_rank": 8}),
    "optim.stochastic_rounding": (BERT, False, {}, {"optim.moments": "bfloat16"}),
    "optim.no_decay": (BERT, ["bias"], {"optim.weight_decay": 0.0}, {}),
    "mesh.startup_minutes": (BERT, 1.0, {}, {"mesh.distributed": True}),
    "mesh.peer_minutes": (BERT, 1.0, {}, {"mesh.distributed": True}),
    "init.random": (BERT, True, {}, {"init.run": "run"}),
    "init.step": (BERT, 3, {}, {"init.run": "run"}),
    "init.grow": (TASK, True, {"init.random": True}, {}),
    "init.drop_heads": (TASK, True, {"init.random": True}, {}),
    "evaluate.every": (TASK, 3, {}, {"task.dev_fraction": 0.1}),
    "evaluate.batch": (TASK, 3, {}, {"task.dev": "dev.tsv"}),
    "data.vocabulary": (GPT, "characters", {"data.tokenizer": "folder"}, {}),
    "data.lowercase": (BERT, False, {"init.run": "run"}, {}),
    "data.features": (GPT_TASK, "off", FROZEN, {**FROZEN, "task.lm_weight": 0.0}),
    "model.dropout": (TASK, 0.3, FROZEN, {}),
    "model.attention_dropout": (TASK, 0.3, FROZEN, {}),
    "model.init": (GPT, "released", {"init.run": "run"}, {"init.run": "run", "init.random": True}),
    "model.position_std": (GPT, 0.1, {"init.run": "run"}, {"init.run": "run", "init.grow": True}),
    "task.header": (TASK, "no", {"task.train": "a.jsonl"}, {"task.train": "a.tsv.gz"}),
}
ALWAYS = """
    data.batch data.length data.ramp_from data.ramp_steps dir epochs evaluate.metric evaluate.patience head.pair
    init.redraw_layers init.run log.details log.every log.profile log.tensorboard log.to mesh.compiler_options mesh.data
    mesh.context mesh.dcn_data mesh.stall_minutes
    mesh.distributed mesh.fsdp mesh.tensor optim.accumulate optim.clip optim.decay_steps optim.final_lr optim.frozen
    optim.frozen_layers optim.lora_rank optim.lora_targets optim.max_skipped optim.name optim.schedule
    optim.weight_decay save.every save.keep_every save.max_to_keep seed steps
    task.bad_rows task.dev task.dev_fraction task.kind task.label task.name task.test task.text task.train
""".split()
"""Options beside those of the model that always have an effect, or whose own configuration refuses them where they have
none."""


@pytest.mark.parametrize("name", CASES)
def test_an_option_is_refused_where_it_has_no_effect(name: str):
    run, value, without, beside = CASES[name]
    refused, taken = (with_options(run, {**others, name: value}) for others in (without, beside))
    with pytest.raises(ConfigError, match=f"^{name.replace('_', '-')} has no meaning "):
        check_effects([name], [refused], run)
    assert fields(taken)[name] not in (None, fields(run)[name])
    check_effects([name], [taken], run)
    check_effects([name], [refused, taken], run)  # of a grid: one of its runs has a use for it


def test_a_run_that_exists_goes_on_with_an_option_without_effect(tmp_path):
    run = with_options(TASK, {"optim.lora_alpha": 16.0, "dir": str(tmp_path)})
    with pytest.raises(ConfigError, match="optim.lora-alpha has no meaning"):
        check_effects(["optim.lora_alpha"], [run], TASK)
    (tmp_path / "run.json").touch()
    check_effects(["optim.lora_alpha"], [run], TASK)


def test_every_need_has_a_case_and_every_option_is_looked_at():
    assert CASES.keys() == _NEEDS.keys()
    options = {name for run in (BERT, GPT, ELMO, task("classify")) for name in fields(run)}
    asked = {name for name in options if not name.startswith("model.")}
    assert asked == {name for name in {*_SCOPES, *_NEEDS, *ALWAYS} if not name.startswith("model.")}


ALPHA = ["finetune", str(GOLDEN / "bert"), "--task.kind", "classify", "--task.train", "train.tsv",
         "--task.dev", "train.tsv", "--dir", "new", "--optim.lora-alpha", "16"]  # fmt: skip


def test_an_option_is_held_against_all_that_is_given(tmp_path, monkeypatch):
    """The need of an option may be met in a file and on the command line, by a grid's later value, and by examples."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.tsv").write_text("text\tlabel\na film\tgood\na bore\tbad\n")
    (tmp_path / "rank.yaml").write_text("optim.lora-rank: 4\n")
    (tmp_path / "alpha.yaml").write_text("optim.lora-alpha: 16\n")
    given = list[list[Run]]()
    monkeypatch.setattr("contexture.train.loop.train", lambda run, *_: given.append([run]) or sys.exit(0))
    monkeypatch.setattr(
        "contexture.train.grid.train_grid.train_grid", lambda grid, *_: given.append(grid.runs) or sys.exit(0)
    )
    for words in (["--config", "rank.yaml"], ["--grid", "optim.lora-rank=0,4"], ["--optim.lora-rank", "4"]):
        assert cli.main([*ALPHA, *words]) == 0
    assert cli.main([*ALPHA[:-2], "--config", "alpha.yaml", "--optim.lora-rank", "4"]) == 0
    assert [[(run.optim.lora_rank, run.optim.lora_alpha) for run in runs] for runs in given] == [
        [(4, 16)], [(0, 16), (4, 16)], [(4, 16)], [(4, 16)]
    ]  # fmt: skip
    for words in ([], ["--grid", "optim.peak-lr=1e-3,2e-3"]):
        assert cli.main([*ALPHA, *words]) == 2
    assert cli.main([*ALPHA[:-2], "--config", "alpha.yaml"]) == 2 and len(given) == 4
    with contextlib.suppress(SystemExit):
        contexture.finetune(ALPHA[1], train="train.tsv", dev="train.tsv", dir="new", options={"evaluate.every": 2})
    assert given[4][0].evaluate.every == 2
    with pytest.raises(ConfigError, match="evaluate.every has no meaning without held-out examples"):
        contexture.finetune(ALPHA[1], train=[("a", "b")] * 4, dir="new", options={"evaluate.every": 2})
    assert not (tmp_path / "new").exists()


def test_dropout_that_is_switched_off_suits_a_frozen_backbone():
    run = with_options(TASK, {**FROZEN, "model.dropout": 0.0})
    check_effects(["model.dropout", "optim.frozen"], [run], TASK)


def test_a_warm_up_has_one_length():
    with pytest.raises(ConfigError, match="--optim.warmup and --optim.warmup-fraction both say how long to warm up"):
        with_options(BERT, {"optim.warmup": 5, "optim.warmup_fraction": 0.1})


def test_options_of_another_optimizer_or_family_are_refused():
    with pytest.raises(ConfigError, match="--optim.eps is for --optim.name adamw, bert, gpt1 or lamb"):
        with_options(ELMO, {"optim.name": "adagrad", "optim.eps": 1e-3})
    vectors = replace(BERT, model=VectorsConfig(vocab=9, hidden=4))
    with pytest.raises(ConfigError, match="--optim.layer-decay is for a BERT, a GPT or an ELMo"):
        check_scope(["optim.layer_decay"], finetune_run(vectors, "run", "classify"))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: requests.GenerationRequest("run", "a", top_p_exclusive=True), "top-p-exclusive= is for nucleus sampl"),
        (lambda: requests.GenerationRequest("run", "a", top_k=5, temperature=0.0), "top-k= is for sampling, and"),
        (lambda: requests.GenerationRequest("run", "a", top_p=0.5, temperature=0.0), "top-p= is for sampling, and"),
        (lambda: requests.ScoreRequest("run", text="a", top=3), "top= is for the page; give --to page.html too"),
        (lambda: requests.ScoreRequest("run", text="a", documents="blank_lines"), "documents= is for files; give"),
        (lambda: requests.SensesRequest(run="r", word="w", input="f", projection="tsne"), "projection= is for a page"),
        (lambda: requests.SensesRequest(run="r", word="w", input="f", layers="1", to="a.html"), "layers= is for a fig"),
        (lambda: requests.SensesRequest(run="r", word="w", input="f", theme="dark", to="a.svg"), "theme= is for a *.p"),
        (lambda: requests.LayersRequest(runs=("r",), theme="dark"), "theme= is for a *.png or a *.pdf; give --to fig"),
        (lambda: requests.CompareRequest(runs=("r", "s"), theme="dark"), "theme= is for a *.png or a *.pdf; give"),
        (lambda: requests.TokenizerRequest(kind="byte-bpe", input=("f",), to="t", word_splitter="punctuation"),
         "word-splitter= is for words; give the kind words too, or leave --word-splitter out"),
        (lambda: requests.ZeroshotRequest("r", task="lambada", input="f", seed=3), "seed= has no meaning for --task"),
        (lambda: requests.ZeroshotRequest("r", task="cbt", input="f", header="no"), "header= has no meaning for"),
        (lambda: EvaluationOptions(overwrite=True), "overwrite= is for a submission; give --submission DIR too"),
        (lambda: EvaluationOptions(theme="dark"), "theme= is for figures; give --figures DIR too"),
    ],
)  # fmt: skip
def test_an_option_of_a_command_that_has_no_effect_is_refused(make, line):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the line is compared
        make()
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("task.symmetric", "a GPT's --task.kind classify or regress"),
        ("task.choices", "--task.kind choice"),
        ("task.labels", "--task.kind classify or tag or choice"),
        ("task.class_weights", "--task.kind classify or tag or choice"),
        ("data.context", "--task.kind tag"),
        ("head.crf", "--task.kind tag of an ELMo or static vectors"),
        ("task.lm_weight", "fine-tuning a GPT"),
        ("data.packed", "pretraining a BERT or a GPT"),
        ("data.path", "pretraining on text (a task has --task.train and --task.dev)"),
        ("data.negatives", "pretraining an ELMo"),
        ("data.max_predictions", "pretraining a BERT"),
    ],
)
def test_an_option_says_what_it_is_for(name: str, what: str):
    with pytest.raises(ConfigError, match=re.escape(f"is for {what}, and has no meaning for task.kind=span; leave it")):
        check_scope([name], finetune_run(BERT, "run", "span"))
