"""Forty mistakes of a new user: each is one clear line on stderr and exit code 2, before any work starts."""

import shutil
from pathlib import Path

import pytest

from contexture.cli import main as cli
from contexture.cli.commands import COMMANDS
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")

NEW = "--dir new --data.path text.txt"
TASK = "--task.kind classify --task.train train.tsv --dir new"
MISTAKES = {
    # words that are misspelled or missing
    "finetnue bert": "there is no command 'finetnue' (did you mean finetune?); contexture --help lists them",
    "help pretrian": "there is no command 'pretrian' (did you mean pretrain?); contexture --help lists them",
    "pretrain": "pretrain wants a recipe first: contexture pretrain bert.tiny …",
    f"pretrain bert.tinny {NEW}": "there is no recipe 'bert.tinny' (did you mean bert.tiny?); `contexture recipes`",
    f"pretrain bert {NEW}": "bert is a folder; pretrain wants a recipe first: contexture pretrain bert.tiny …",
    f"pretrain mine.py:bigg {NEW}": "mine.py: there is no function 'bigg' (did you mean big?); it has big; give",
    "pretrain bert.tiny --data.path text.txt": "dir is empty; say where the run shall live: --dir RUN",
    "pretrain bert.tiny --dir new": "data.path is empty; give the text to train on: --data.path FILE",
    f"pretrain bert.tiny {NEW} --optim.peek-lr 1": "pretrain bert.tiny: unrecognised option --optim.peek-lr (did you "
    "mean --optim.peak-lr?); --help lists what it takes",
    f"pretrain bert.tiny {NEW} --learning-rate 1": "(did you mean --optim.peak-lr?)",
    f"pretrain bert.tiny {NEW} --steps": "--steps wants a value: --steps N",
    "finetune": "finetune wants the run to begin from first: contexture finetune RUN --task NAME, or --task.kind",
    "finetune bert --dir new": "finetune wants a task: contexture finetune RUN --task NAME, or --task.kind",
    "finetune bert --task ssst2 --dir new": "there is no task 'ssst2' (did you mean sst2?); `contexture recipes` lists",
    "finetune bert --task.kind classify --dir new": "task.train is empty; give the examples to learn from:",
    "predict task --input train.tsv": "predict needs --to FILE: contexture predict RUN --input FILE --to FILE",
    "evaluate": "evaluate needs RUN: contexture evaluate RUN … [options]",
    "tokenizer wordpice --input text.txt --to new": "KIND is 'wordpice', not one of wordpiece, byte-bpe, characters, "
    "sentencepiece-unigram, sentencepiece-bpe, words (did you mean wordpiece?)",
    "generate gpt": "give --prompt TEXT, or --input FILE with a prompt in each line",
    "plan bert.tiny": "plan needs the devices: --topology v5e:4x4",
    "check --dirr new": "check: unrecognised option --dirr (did you mean --dir?); --help lists what it takes",
    "recipes --jsno": "recipes: unrecognised option --jsno; --help lists what it takes",
    "completion tcsh": "SHELL is 'tcsh', not one of bash, zsh, fish",
    "status": "status needs runs: contexture status RUN …",
    "compare bert": "compare needs two runs or more: contexture compare RUN RUN …",
    "zeroshot gpt --task lambada --input text.txt --shots 2": "shots= has no meaning for --task lambada; it is for",
    "zeroshot bert --task qa --input text.txt": "--task qa is for a GPT, which writes its answers; bert is a run of",
    "neighbours bert --input text.txt": "give --text TEXT, or --queries FILE with a sentence in each line",
    "similarity bert --input text.txt --dimensions 2": "dimensions= is for whitened vectors; give --whiten too, or",
    "slim bert --step 7": "bert holds no checkpoint of step 7; those there are of step 120",
    "layers": "layers needs runs: contexture layers RUN … [--to FILE]",
    "probe bert --train train.tsv --dev train.tsv --to new --task poss": "there is no task 'poss' (did you mean pos?);",
    # values that are no values, or out of range
    f"pretrain bert.tiny {NEW} --steps 1e4": "--steps wants a whole number, not '1e4'",
    f"pretrain bert.tiny {NEW} --lr fast": "--optim.peak-lr wants a number, not 'fast'",
    f"pretrain bert.tiny {NEW} --lr -1": "optim.peak-lr=-1.0 is not above 0",
    f"pretrain bert.tiny {NEW} --lr 1 --optim.peak-lr 1": "--lr and --optim.peak-lr are the same option; give one of",
    f"pretrain bert.tiny {NEW} --data.lowercase yes": "pretrain bert.tiny: --data.lowercase takes no value, and got "
    "'yes'; give --data.lowercase or --data.no-lowercase alone",
    f"pretrain bert.tiny {NEW} --data.lowercase=yes": "--data.lowercase takes no value, and got 'yes'",
    f"pretrain bert.tiny {NEW} --log.to wandbb": "--log.to is 'wandbb', not one of wandb, mlflow, aim (did you mean",
    f"pretrain bert.tiny {NEW} --optim.name adam": "--optim.name is 'adam', not one of bert, adamw, gpt1, lamb, "
    "adafactor, adagrad (did you mean adamw?)",
    f"pretrain bert.tiny {NEW} --steps 5 --epochs 2": "--steps and --epochs both say how long to train; give one of",
    f"pretrain bert.tiny {NEW} --length 600": "data.length=600 exceeds model.length=512; lower data.length or raise",
    f"pretrain bert.tiny {NEW} --model.hidden 100 --model.heads 3": "model.hidden=100 is not a multiple of",
    f"pretrain elmo.tiny {NEW} --model.filters 3": "--model.filters wants WIDTH COUNT …, not '3'",
    f"pretrain bert.tiny {NEW} --mesh.fsdp 3": "mesh data × fsdp × tensor = 1 × 3 × 1 = 3 does not fit 1 device",
    "generate gpt --prompt a --top-p 3": "top-p=3.0 is not above 0 and at most 1",
    "embed bert --input text.txt --to new.npz --pool men": "--pool is 'men', not one of auto, none, mean, mean-words, "
    "last, cls (did you mean mean?)",
    # options of another family or another command
    f"pretrain elmo.tiny {NEW} --model.quantization int8": "pretrain elmo.tiny: --model.quantization is for a BERT or "
    "a GPT, and has no meaning here; leave it out",
    f"pretrain elmo.tiny {NEW} --model.quantizaton int8": "(--model.quantization is for a BERT or a GPT)",
    f"pretrain bert.tiny {NEW} --data.negatives 5": "--data.negatives is for pretraining an ELMo, and has no meaning "
    "for pretraining a BERT; leave it out",
    f"pretrain bert.tiny {NEW} --top-k 5": "pretrain bert.tiny: --top-k is for contexture generate, and has no meaning",
    f"pretrain bert.tiny {NEW} --vocab_size 80": "unrecognised option --vocab_size (did you mean --model.vocab?)",
    f"pretrain bert.tiny {NEW} --no-data.lowercase": "--no-data.lowercase (did you mean --data.no-lowercase?)",
    "finetune bert --task classify --train train.tsv --dir new": "--train (did you mean --task.train?)",
    "finetune bert --task.kind ner --task.train two.tsv --dir new": "no task 'ner' (did you mean tag?)",
    "finetune bert --task tag --task.train two.tsv --dir new": "if this is CoNLL, a word and its tag in each line, "
    "name it *.conll",
    "finetune bert --task tag --task.train two.bio --dir new": "or tfds:NAME; name it *.conll",
    f"finetune bert {TASK} --optim.lora-alpha 16": "optim.lora-alpha has no meaning without adapters; give",
    f"pretrain bert.tiny {NEW} --task.kind tag": "pretrain bert.tiny reads text and no task; contexture finetune RUN",
    f"finetune bert {TASK} --data.path text.txt": "--data.path is for pretraining on text (a task has --task.train "
    "and --task.dev), and has no meaning for task.kind=classify; leave it out",
    f"finetune bert {TASK} --task.lm-weight 1": "task.lm-weight is for GPT and other causal models, and this",
    "evaluate bert --lr 3": "(--optim.peak-lr is for contexture pretrain and finetune)",
    "import hf empty --to new --gelu tanh": "--gelu has no meaning for hf; it is for bert-tf",
    # runs and files that are none, or others than meant
    "finetune bert.tiny --task sst2 --dir new": "bert.tiny is a recipe, not a run; train it: contexture pretrain",
    f"finetune empty {TASK}": "empty is not a run: it holds no run.json; give the --dir of a training",
    f"finetune bert {TASK} --model.layers 5": "model.layers=5 is not that of bert, whose parameters the run begins",
    "finetune bert --task.kind classify --task.train train.csv --dir new": "train.csv: task.train names no such file",
    "finetune bert --task.kind classify --task.train other.tsv --dir new": "other.tsv:1: no column has a usual name of",
    f"finetune bert {TASK} --task.text txt": "train.tsv:1: there is no column 'txt' (did you mean 'text'?)",
    "finetune bert --task sst2 --task.kind tag --dir new": "task.name=sst2 does not fit task.kind=tag; give one of",
    f"pretrain bert.tiny {NEW} --init gpt": "gpt is a run of the family gpt, and this model one of bert; begin from",
    "pretrain bert.tiny --dir new --data.path txet.txt": "data.path names no such file or folder; check the path",
    f"pretrain bert.tiny {NEW} --data.tokenizer vocab": "vocab: data.tokenizer names no such file or folder; check the",
    "pretrain bert.tiny --dir new --data.path train.tsv": "a table of examples, and data.path wants text; learn a task",
    f"pretrain bert.tiny {NEW} --config no.yaml": "--config no.yaml: no such file; give the run.json of a run, or a",
    f"pretrain bert.tiny {NEW} --config bad.yaml": "bad.yaml: there is no option 'optim.peek_lr' (did you mean optim.",
    "evaluate bert --step 77777": "bert holds no checkpoint of step 77777; those there are of step 120",
    "predict bert --input train.tsv --to new.jsonl": "bert was pretrained and not fine-tuned for a task: contexture",
    "score gpt --input txet.txt": "txet.txt: input names no such file or folder; check the path",
    "score gpt": "give --input FILE, or --text TEXT",
    "score gpt --text a --to new.htm": "--to new.htm: a page ends in .html; give such a name",
    "attention bert --text a --to new.htm": "--to new.htm: a page ends in .html; give such a name",
    "attention bert --text a --to new.html --layers 7": "layers: 7 is none of the model's layers, 1 to 2; give some",
    "senses bert --word bank --input text.txt": "the word 'bank' never occurs in the 2 sentences of the input; give",
    "embed bert --input text.txt --to new.csv": "new.csv: not a file of vectors; give *.npy, *.parquet or",
    "show bret.tiny": "there is no recipe 'bret.tiny' (did you mean bert.tiny?); `contexture recipes` lists them",
    "export gpt bilm --to new": "gpt is no ELMo, and bilm is ELMo's format; give a run of an elmo recipe",
    "import bert-tf empty --to new": "empty/bert_config.json: cannot be read (No such file or directory); give the",
    "tokenizer wordpiece --input text.txt --vocab-size 0 --to new": "a vocabulary of 0 has no room beside the 5",
    "prepare bert.tiny --input text.txt --to bert": "bert: already holds something; give another folder",
    "clean --input text.txt --to new --rules gofer": "--rules is 'gofer', not one of c4, gopher (did you mean gopher?)",
    "clean --input text.txt --to new": "rules= asks for no cleaning; give --rules c4 gopher, --duplicates documents",
    "clean --input text.txt --to bert --duplicates near": "bert: already holds something; give another folder",
    "clean --input text.txt --to new --languages english": "languages=english: none of the 176 languages that are",
    "clean --to new --join --rules c4": "rules= is for making parts; leave --join out too, or leave --rules out",
    "fill task": "fill needs --text TEXT: contexture fill RUN --text TEXT [options]",
}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder with small runs, a text, and tables with and without the usual columns."""
    for name, run in (("bert", "bert"), ("gpt", "gpt"), ("task", "bert_classify")):
        shutil.copytree(GOLDEN / run, tmp_path / name)
    (tmp_path / "empty").mkdir()
    for name, content in {
        "text.txt": "The cat sat. It slept.\n\nThe dog ran. It barked.\n",
        "train.tsv": "text\tlabel\na film\tgood\na bore\tbad\n",
        "other.tsv": "a\tb\n1\t2\n",
        "two.tsv": "The\tDET\ncat\tNOUN\n",
        "two.bio": "The\tDET\ncat\tNOUN\n",
        "bad.yaml": "optim:\n  peek-lr: 1e-4\n",
        "mine.py": "from contexture.configs.bert import tiny\n\ndef big():\n    return tiny()\n",
    }.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_forty_and_every_command_is_among_them():
    assert len(MISTAKES) >= 40 and {words.split()[0] for words in MISTAKES} >= COMMANDS.keys()


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_clear_line_and_nothing_is_written(here, capsys, words):
    before = sorted(here.rglob("*"))
    code = cli.main(words.split())
    out, err = capsys.readouterr()
    assert code == 2 and not out and len(err.splitlines()) == 1, err
    assert MISTAKES[words] in err and "Traceback" not in err
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("tokenizer", "ConfigError: tokenizer needs --to DIR: contexture tokenizer KIND --input FILE … --to DIR"),
        ("tokenizer bpe --input text.txt --to new", "ConfigError: KIND is 'bpe', not one of wordpiece, byte-bpe,"),
        ("fill bert", "ConfigError: fill needs --text TEXT: contexture fill RUN --text TEXT [options]"),
        ("show bert.tiny --data.length x", "ConfigError: --data.length wants a whole number, not 'x'"),
    ],
)
def test_in_a_terminal_a_mistake_is_the_same_line(here, capsys, monkeypatch, words, line):
    """tyro colours its errors where stdout is a terminal."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert cli.main(words.split()) == 2
    (err,) = capsys.readouterr().err.splitlines()
    assert err.startswith(line), err
