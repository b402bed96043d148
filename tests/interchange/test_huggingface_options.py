"""Options of a folder of transformers: each is read, or refused by its name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import contexture
from contexture.configs import recipe
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError, did_you_mean
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.interchange import convert
from contexture.interchange.allennlp_bilm import _bilm_options
from contexture.interchange.huggingface_export import _CLASSES, _hf_config, _labels_of, _part
from contexture.interchange.huggingface_import import _GELU, _bert, _gpt1, _gpt2, _labels
from contexture.interchange.imported_model import Settings, note_unread
from contexture.interchange.weight_files import Tensors
from contexture.models.config import ElmoConfig
from contexture.train.checkpoints.initial import write_first
from contexture.train.checkpoints.late_evaluation import text_digest
from contexture.train.settings import run_file
from tests.helpers.commands import run_command
from tests.helpers.logs import logged
from tests.helpers.slow_pairs import vocabulary
from tests.interchange.hf_folders import GOLDEN, Change, config_with, raw_with, refused

pytestmark = pytest.mark.usefixtures("one_device")


def tokenizer_with(edit: Callable[[dict[str, Any]], Any]) -> Change:
    def change(folder: Path) -> None:
        tree = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        edit(tree)
        (folder / "tokenizer.json").write_text(json.dumps(tree), "utf-8")

    return change


BERT = {"tokenizer_class": "BertTokenizer"}


def settings_with(**values: Any) -> Change:
    return raw_with("tokenizer_config.json", lambda raw: json.dumps({**json.loads(raw), **values}).encode())


def names_with(**values: Any) -> Change:
    """What older releases wrote beside an almost empty tokenizer_config.json."""

    def change(folder: Path) -> None:
        (folder / "tokenizer_config.json").unlink()
        (folder / "special_tokens_map.json").write_text(json.dumps(values), "utf-8")

    return change


def specials_alone(folder: Path) -> None:
    """A tokenizer.json without the vocabulary that lies beside it."""
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    edit = {"vocab": {token: n for n, token in enumerate(specials)}}
    tokenizer_with(lambda t: (t["model"].update(edit), t.update(added_tokens=[])))(folder)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (tokenizer_with(lambda t: t["model"].update(type="BPE")), "model is of type 'BPE', and a WordPiece with its"),
        (tokenizer_with(lambda t: t["model"]["vocab"].update(new=3)), "both have id 3; give each its own"),
        (tokenizer_with(lambda t: t["model"]["vocab"].update(new=10**9)), "no token has id"),
        (tokenizer_with(lambda t: t["model"]["vocab"].update(new="3")), "not a vocabulary; it wants one object"),
        (tokenizer_with(lambda t: t["model"]["vocab"].pop("the")), "no token has id "),
        (tokenizer_with(lambda t: t.update(added_tokens=[7])), "added_tokens holds '7', no token with its id"),
        (tokenizer_with(lambda t: t["model"].update(max_input_chars_per_word=-1)), "max_input_chars_per_word is -1"),
        (tokenizer_with(lambda t: t["model"].update(continuing_subword_prefix="@@")), "prefix is '@@', and wordp"),
        (tokenizer_with(lambda t: t["model"].update(max_input_chars_per_word=10**30)), "max_input_chars_per_word is 1"),
        (tokenizer_with(lambda t: t["model"]["vocab"].update({"\ud800": 48})), "is no text in UTF-8"),
        (tokenizer_with(lambda t: t["normalizer"].update(clean_text=False)), "its normalizer is {"),
        (tokenizer_with(lambda t: t.update(normalizer={"type": "Lowercase"})), "its normalizer is {"),
        (tokenizer_with(lambda t: t.update(normalizer=None)), "its normalizer is None, and wordpiece here has {'type'"),
        (tokenizer_with(lambda t: t.update(pre_tokenizer={"type": "WhitespaceSplit"})), "its pre_tokenizer is {"),
        (raw_with("tokenizer.json", lambda raw: b'{"a": ' + b"1" * 5000 + b"}"), "tokenizer.json: not JSON (Exceeds"),
        (settings_with(**BERT, strip_accents=1), "strip_accents is '1', not one of (True, False, None)"),
        (settings_with(**BERT, tokenize_chinese_chars=False), "tokenize_chinese_chars is 'False', not one of"),
        (settings_with(tokenizer_class="BertJapaneseTokenizer"), "tokenizer_class is 'BertJapaneseTokenizer', not one"),
        (settings_with(cls_token={"content": "the"}), "cls_token is 'the', and a BERT's is [CLS]; nothing else"),
        (names_with(mask_token="the"), "mask_token is 'the', and a BERT's is [MASK]; nothing else is known"),
        (tokenizer_with(lambda t: t["model"].update(unk_token="[PAD]")), "model.unk_token is '[PAD]', and word"),
        (tokenizer_with(lambda t: t["model"].update(fast=True)), "model.fast is an option that is not known here"),
        (tokenizer_with(lambda t: t.update(before=True)), "tokenizer.json: before is an option that is not known here"),
        (specials_alone, "holds special tokens alone, so that every text is [UNK]; give --vocabulary vocab.txt"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_tokenizer_is_said(folder, capsys, change, line):
    change(folder)
    refused(capsys, folder, line)


def test_an_export_says_what_it_is_of_and_how_its_numbers_are_stored(folder, tmp_path):
    """A configuration that lacked its type, and one of a model in 16 bits: the weights are float32."""
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    config |= {"dtype": "bfloat16", "torch_dtype": "float16", "kept": 7}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    convert.import_model("hf", folder, tmp_path / "run")
    convert.export_model(tmp_path / "run", "hf", tmp_path / "out", None)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["dtype"], config["kept"]) == ("bert", "float32", 7)
    assert "torch_dtype" not in config


@settings(deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=4, unique=True))
def test_labels_that_go_out_come_back(labels: list[str]):
    """Whatever characters they are of: joiners, no-break spaces, line ends."""
    tree = json.loads(json.dumps(_labels_of(tuple(labels))))
    assert _labels(Path("config.json"), tree, "classify", len(labels)) == tuple(labels)


@pytest.mark.parametrize("label", ["", 7, None, "\ud800"])
def test_a_label_that_is_none_is_said(label: object):
    with pytest.raises(DataError, match="config.json: id2label holds what is no name; give each class one"):
        _labels(Path("config.json"), {"id2label": {"0": label, "1": "b"}}, "classify", 2)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier without names for its classes."""
    folder = tmp_path_factory.mktemp("classifier") / "theirs"
    convert.export_model(GOLDEN / "bert_classify_3", "hf", folder, None)
    config_with(id2label={"0": "LABEL_0", "1": "LABEL_1"}, label2id={"LABEL_0": 0, "LABEL_1": 1})(folder)
    return folder


def test_classes_without_names_are_named_at_import(classifier, tmp_path, capsys):
    run, dev = tmp_path / "run", tmp_path / "dev.tsv"
    dev.write_text("text\tlabel\n" + "the cat\t0\nthe dog\t1\n" * 8)
    assert run_command(capsys, "import", "hf", classifier, "--to", run, "--labels", "0", "1")[0] == 0
    assert contexture.evaluate(run, dev=str(dev))["examples"] == 16
    assert run_file.read(run).labels == ("0", "1")
    convert.export_model(run, "hf", tmp_path / "out", None)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["id2label"] == {"0": "0", "1": "1"} and config["label2id"] == {"0": 0, "1": 1}
    # Without them an evaluation says how.
    contexture.import_model("hf", classifier, tmp_path / "unnamed")
    with pytest.raises(DataError, match="label '0' is not one of LABEL_0, LABEL_1; name the classes, in .* --labels"):
        contexture.evaluate(tmp_path / "unnamed", dev=str(dev))


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (["a"], "--labels gives 1 names, and the model has 2 classes (LABEL_0, LABEL_1); give each class one"),
        (["a", "a"], "--labels names a class twice; give each its own name"),
        (["a", ""], "--labels holds what is no name; give each class one"),
    ],
)
def test_names_that_do_not_fit_the_classes_are_said(classifier, tmp_path, capsys, labels: list[str], line: str):
    refused(capsys, classifier, line, "--labels", *labels)


def test_a_model_without_classes_takes_no_names(folder, capsys):
    refused(capsys, folder, "--labels gives 2 names, and it has no classes", "--labels", "a", "b")


def test_a_name_in_other_capitals_is_meant():
    assert did_you_mean("entailment", ["NEUTRAL", "ENTAILMENT"]) == " (did you mean ENTAILMENT?)"


def test_a_run_that_cannot_be_opened_is_not_left(folder, tmp_path, capsys, monkeypatch):
    def broken(opened: Path, record: object) -> None:
        raise DataError(f"{opened / 'tokenizer'}: no vocabulary; give another")

    monkeypatch.setattr(convert, "read_tokenizer", broken)
    refused(capsys, folder, f"{tmp_path / 'run' / 'tokenizer'}: no vocabulary; give another")


def test_a_model_that_answers_with_no_numbers_is_not_left(folder, tmp_path, capsys):
    """Each of its weights is a number; their sums are none."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file({name: np.full_like(x, 3e38) if "embeddings" in name else x for name, x in tensors.items()}, file)
    refused(capsys, folder, f"{tmp_path / 'run'}: the model answers with numbers that are not finite")


@pytest.mark.parametrize("left", [-1, 0, None], ids=["a byte too few", "as much as it takes", "not known"])
def test_an_import_that_is_too_large_to_open_here_stays(folder, tmp_path, monkeypatch, left):
    """Linux ends a process that takes more than there is, so it is not opened where less is left than that takes."""

    opened: list[None] = []

    def exhausted(*words: Any) -> None:
        opened.append(None)
        raise MemoryError("std::bad_alloc")

    size = sum(x.size * 4 for x in load_file(folder / "model.safetensors").values())
    monkeypatch.setattr(convert, "load_parameters", exhausted)
    enough = int(convert.OPENED_SIZE * size)
    monkeypatch.setattr(convert, "available_memory", lambda: None if left is None else enough + left)
    with logged() as messages:
        convert.import_model("hf", folder, tmp_path / "run")
    assert any("too little memory here to open the model whole" in message for message in messages)
    assert (tmp_path / "run" / "run.json").is_file() and len(opened) == (left != -1)


def test_a_run_that_does_not_fit_its_vocabulary_is_refused_with_any_memory(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(convert, "available_memory", lambda: 0)
    monkeypatch.setattr(convert, "text_batch", lambda *given: {"tokens": np.full((1, 4), 10**6)})
    refused(capsys, folder, "the vocabulary has ids behind the model's")


def test_an_import_is_read_back_before_it_is_there(folder, tmp_path, monkeypatch):
    def otherwise(run: Path, leaves: Any, seed: int) -> None:
        write_first(run, leaves, seed)
        file = run / "checkpoints" / "0" / "digest" / "metadata"
        digest = json.loads(file.read_text())
        digest["arrays"] = {name: word ^ 1 for name, word in digest["arrays"].items()}
        del digest["self"]
        file.write_text(json.dumps({**digest, "self": text_digest(digest)}))

    monkeypatch.setattr(convert, "write_first", otherwise)
    with pytest.raises(DataError, match="do not match their digest"):
        convert.import_model("hf", folder, tmp_path / "run")
    assert not [entry for entry in tmp_path.iterdir() if "run" in entry.name]


def test_a_setting_that_nothing_knows_is_named(tmp_path: Path):
    """Not refused: a configuration may hold anything beside a model's own. What is null says nothing."""
    tree = {"vocab_size": 5, "use_cache": True, "rope_theta": 1e4, "window": None, "residual_scale": 2, "hidden_act": 1}
    settings, notes = Settings(tree), list[str]()
    assert settings.get("vocab_size") == 5 and settings["hidden_act"] == 1 and dict(settings) == tree
    note_unread(tmp_path / "config.json", settings, notes)
    assert notes == [
        "config.json has settings that are not known here and were not read: residual_scale, rope_theta"
    ]  # fmt: skip
    note_unread(tmp_path / "config.json", Settings({"a\x1bb": 1}), notes)
    assert "were not read: a\\x1bb" in notes.pop()
    many = Settings({f"x{n}": n for n in range(20)})
    note_unread(tmp_path / "config.json", many, notes)
    assert notes[1].endswith(" and 12 more")


# transformers 4 and 5, configuration_bert.py, configuration_gpt2.py, configuration_openai.py.
_LEFT_OUT = {
    _bert: {"vocab": 30522, "length": 512, "layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "segments": 2,
            "gelu": "erf", "eps": 1e-12, "dropout": 0.1, "attention_dropout": 0.1, "head_dropout": 0.1,
            "init_std": 0.02, "tied": True},
    _gpt2: {"vocab": 50257, "length": 1024, "layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "gelu": "tanh",
            "eps": 1e-5, "dropout": 0.1, "attention_dropout": 0.1, "init_std": 0.02, "tied": True, "norm": "pre"},
    _gpt1: {"vocab": 40478, "length": 512, "layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "gelu": "tanh",
            "eps": 1e-5, "dropout": 0.1, "attention_dropout": 0.1, "init_std": 0.02, "tied": True, "norm": "post"},
}  # fmt: skip


@pytest.mark.parametrize("read", _LEFT_OUT, ids=lambda read: read.__name__.strip("_"))
def test_what_a_configuration_leaves_out_has_the_librarys_value(read):
    """The library itself says so in the parity suite. Each name that is there is read, and changes its own field."""
    config = read(Path("config.json"), {}, *([] if read is _bert else [[]]))
    assert {name: getattr(config, name) for name in _LEFT_OUT[read]} == _LEFT_OUT[read]


_GPT_GIVEN = {"vocab_size": 11, "n_positions": 12, "n_layer": 3, "n_embd": 8, "n_head": 2, "layer_norm_epsilon": 1e-3,
              "resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.3}  # fmt: skip
_GPT_READ = {"vocab": 11, "length": 12, "layers": 3, "hidden": 8, "heads": 2, "eps": 1e-3, "dropout": 0.2,
             "attention_dropout": 0.3, "head_dropout": 0.2}  # fmt: skip
_GIVEN = {
    _bert: ({"vocab_size": 11, "max_position_embeddings": 12, "num_hidden_layers": 3, "hidden_size": 8,
             "num_attention_heads": 2, "intermediate_size": 16, "type_vocab_size": 3, "hidden_act": "gelu_new",
             "layer_norm_eps": 1e-3, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3},
            {"vocab": 11, "length": 12, "layers": 3, "hidden": 8, "heads": 2, "ffn": 16, "segments": 3,
             "gelu": "tanh", "eps": 1e-3, "dropout": 0.2, "attention_dropout": 0.3}),
    _gpt2: ({**_GPT_GIVEN, "n_inner": 16, "activation_function": "gelu"}, {**_GPT_READ, "ffn": 16, "gelu": "erf"}),
    _gpt1: ({**_GPT_GIVEN, "afn": "relu"}, {**_GPT_READ, "ffn": 32, "gelu": "relu"}),
}  # fmt: skip


@pytest.mark.parametrize("read", _GIVEN, ids=lambda read: read.__name__.strip("_"))
def test_what_a_configuration_holds_is_read_by_its_name(read):
    given, expected = _GIVEN[read]
    config = read(Path("config.json"), given, *([] if read is _bert else [[]]))
    assert {name: getattr(config, name) for name in expected} == expected


def test_each_name_of_gelu_is_one_formula():
    exact = {"gelu": "erf", "gelu_python": "erf", "relu": "relu"}
    assert exact | dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "tanh") == _GELU


def test_a_run_of_numbers_goes_out_as_transformers_names_a_regression():
    run = replace(recipe("bert.tiny"), task=TaskConfig(kind="regress"))
    kind, config = _hf_config(run, 30522, WordPiece(vocabulary(), True), ())
    numbers = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    assert kind == "bert" and {name: config[name] for name in numbers} == numbers


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_the_tensor_that_loses_most_of_its_digits_is_named(order: str):
    stored = {name: np.array([1 + part]) for name, part in zip(order, (1e-9, 3e-8, 1e-8), strict=True)}
    tensors = Tensors("f", dict.fromkeys("abc", (1,)), dict.fromkeys("abc", "float64"), stored.__getitem__)
    for name in "abc":
        tensors.read(name)
    # Next to 1 a float32 has steps of 1.2e-7: all three become 1.
    assert tensors.note().endswith(f"by at most 3.0e-08 of a tensor's greatest ({order[1]})")


@pytest.mark.parametrize(
    "named",
    [
        # config.json of gpt2, openai-gpt and bert-base-uncased as published, but for what decides the model.
        "activation_function architectures bos_token_id eos_token_id model_type n_ctx summary_activation "
        "summary_first_dropout summary_proj_to_labels summary_type summary_use_proj task_specific_params",
        "afn architectures model_type n_ctx n_special predict_special_tokens summary_activation summary_first_dropout "
        "summary_proj_to_labels summary_type summary_use_proj task_specific_params",
        "architectures gradient_checkpointing model_type pad_token_id position_embedding_type transformers_version "
        "use_cache directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head "
        "pooler_type",
    ],
)
def test_settings_of_published_models_that_decide_nothing_are_known(tmp_path: Path, named: str):
    read, notes = ("activation_function", "afn", "position_embedding_type"), list[str]()
    settings = Settings(dict.fromkeys(named.split(), "x"))
    for name in read:
        settings.get(name)
    note_unread(tmp_path / "config.json", settings, notes)
    assert not notes


def test_the_original_reads_no_clip_as_null():
    config = ElmoConfig(cell_clip=0.0, projection_clip=0.0)
    assert {_bilm_options(config)["lstm"][name] for name in ("cell_clip", "proj_clip")} == {None}
    options = _bilm_options(replace(config, cell_clip=3.0, projection_clip=2.0))
    assert (options["lstm"]["cell_clip"], options["lstm"]["proj_clip"]) == (3.0, 2.0)


def test_each_head_goes_out_as_the_class_that_transformers_has():
    """Whatever the order of heads; BERT's pooler belongs to what reads it."""
    for kind, name, heads in (
        ("bert", "ForPreTraining", {"pooler", "mlm", "nsp"}),
        ("bert", "ForSequenceClassification", {"pooler", "classify"}),
        ("bert", "ForTokenClassification", {"tag"}),
        ("bert", "ForMultipleChoice", {"pooler", "choice"}),
        ("bert", "ForQuestionAnswering", {"span"}),
        ("gpt2", "LMHeadModel", {"lm"}),
        ("gpt2", "ForTokenClassification", {"tag"}),
        ("openai-gpt", "LMHeadModel", {"lm"}),
    ):
        assert (name, frozenset(heads)) in _CLASSES[kind], (kind, name)
    assert [_part(path) for path in ("backbone/pooler/kernel", "backbone/layers/norm/scale", "heads_mlm/bias")] == [
        *("pooler", "backbone", "mlm")
    ]
