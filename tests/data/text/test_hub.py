"""Files of data sets on the Hugging Face hub, by their addresses, from a hub on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.tasks.read.read_examples import check_examples, examples
from contexture.data.text import hub as files_of_hub
from contexture.data.text.sources import expand, texts
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord, read, with_absolute_paths, with_pinned_addresses, write
from tests.helpers.commands import done, run_command
from tests.interchange.hub_server import Hub, use_hub
from tests.train.run.test_formats import GOLDEN

SET = "hf://datasets/owner/films"
ROWS = {"text": ["a great film", "a bore"] * 8, "label": ["good", "bad"] * 8}
TASK = TaskConfig(kind="classify", text="text", label="label")


@pytest.fixture
def films(hub: Hub, tmp_path: Path) -> Hub:
    """A set with tables and text, in folders."""
    parquet.write_table(pa.table(ROWS), tmp_path / "rows.parquet")
    table = (tmp_path / "rows.parquet").read_bytes()
    files = {
        "README.md": b"# films",
        "dev.json": b"[]",
        "data/train-0.parquet": table,
        "data/train-1.jsonl": b'{"text": "one", "label": "good"}\n{"text": "two", "label": "bad"}\n',
        "data/test.csv": b"text,label\na tall tale,good\na short one,bad\n",
        "texts/a.txt": b"the cat sat.\nthe dog ran.\n",
        "texts/deeper/b.txt": b"never read.\n",
    }
    hub.add("datasets/owner/films", **files)
    return hub


@pytest.mark.parametrize(("file", "count"), [("train-0.parquet", 16), ("train-1.jsonl", 2), ("test.csv", 2)])
def test_a_file_of_a_data_set_is_read_as_a_local_one(films: Hub, file: str, count: int):
    read_rows = list(examples(f"{SET}/data/{file}", TASK, labelled=True))
    assert len(read_rows) == count and films.downloads() == {file}


def test_a_pattern_and_a_folder_stand_for_their_files(films: Hub):
    assert [file.name for file in files_of_hub.local_files(f"{SET}/data/train-*")] == [
        "train-0.parquet",
        "train-1.jsonl",
    ]
    assert list(texts(expand(f"{SET}/texts"))) == ["the cat sat.", "the dog ran."]
    with pytest.raises(DataError, match="stands for 2 files, and one is wanted; name it: train-0.parquet"):
        list(examples(f"{SET}/data/train-*", TASK, labelled=True))


def test_a_run_keeps_the_commit_and_finds_the_same_data_again(films: Hub, tmp_path: Path, monkeypatch):
    task = TaskConfig(kind="classify", train=(f"{SET}/data/train-*",), dev=(f"{SET}/data/test.csv", "x.csv"))
    run = with_absolute_paths(Run(task=task, dir=str(tmp_path)))
    assert run.task.train == task.train
    first = with_pinned_addresses(run, tmp_path)
    commit = "1" * 40
    assert first.task.train == (f"{SET.replace('films', f'films@{commit}')}/data/train-*",)
    assert first.task.dev == (f"hf://datasets/owner/films@{commit}/data/test.csv", os.path.abspath("x.csv"))
    write(tmp_path, RunRecord(run=first))
    films.add("datasets/owner/films", **{"data/train-0.parquet": b"", "data/test.csv": b"text,label\nother,good\n"})
    files_of_hub._download.cache_clear()  # as in another process
    films.requests.clear()
    assert with_pinned_addresses(run, tmp_path) == first == read(tmp_path).run
    assert not films.requests
    other = Run(task=TaskConfig(kind="classify", train=(f"{SET}@main/data/test.csv",)))
    second = (f"hf://datasets/owner/films@{'2' * 40}/data/test.csv",)
    assert with_pinned_addresses(other, tmp_path).task.train == second
    files_of_hub._download.cache_clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    other = Run(task=TaskConfig(kind="classify", train=second))
    assert with_pinned_addresses(other, tmp_path).task.train == second and films.requests  # to be compared


def test_a_data_set_that_is_another_one_is_noticed_as_a_changed_file(films: Hub, tmp_path: Path):
    from contexture.data.tasks.encode.encode_examples import encode
    from contexture.data.tokenizers.registry import load_tokenizer

    address = f"{SET}@{'1' * 40}/data/test.csv"
    task = TaskConfig(kind="classify", text="text", label="label", train=(address,))
    store = encode(task, load_tokenizer(GOLDEN / "bert_3_steps" / "tokenizer"), tmp_path / "data")
    assert not store.sources_changed(task)
    second = films.add("datasets/owner/films", **{"data/test.csv": b"text,label\nanother,good\none,bad\n"})
    changed = TaskConfig(kind="classify", text="text", label="label", train=(address.replace("1" * 40, second),))
    assert not store.sources_changed(changed)  # nothing is downloaded to compare
    files_of_hub.local_files(changed.train[0])
    files_of_hub._download.cache_clear()
    assert "test.csv is not what it was when" in store.sources_changed(changed)


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("hf://datasets/owner/books/a.csv", "no such data set at http://127"),
        (f"{SET}@v2/data/test.csv", "the data set has no such revision"),
        (f"{SET}/data/tset.csv", "the data set has no such file (did you mean data/test.csv?)"),
        (f"{SET}/deev.json", "the data set has no such file (did you mean dev.json?)"),
        (f"{SET}/nothing", "no such file; it has data/test.csv, data/train-0.parquet, data/train-1.jsonl, …"),
        (SET, "no address of a data set's files on the hub; give hf://datasets/OWNER/NAME[@REVISION]/FILE"),
        ("hf://owner/films/a.csv", "no address of a data set's files on the hub"),
        (f"{SET}/../x", "no address of a data set's files on the hub"),
    ],
)
def test_an_address_that_leads_nowhere_is_one_line(films: Hub, address: str, line: str, capsys):
    with pytest.raises(DataError) as error:
        check_examples(TaskConfig(kind="classify", train=(address,)))
    assert line in str(error.value) and str(error.value).startswith(f"{address}: ")
    words = ("--task.kind", "classify", "--task.train", address, "--dir", "run")
    code, err = run_command(capsys, "finetune", GOLDEN / "bert_3_steps", *words)
    assert code == 2 and line in err and len(err.splitlines()) == 1 and not Path("run").exists()


def test_without_a_network_a_data_set_is_read_from_the_cache(films: Hub, tmp_path: Path, monkeypatch):
    address = f"{SET}/data/train-*"
    files = files_of_hub.local_files(address)
    files_of_hub._download.cache_clear()
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    assert files_of_hub.local_files(address) == files
    with pytest.raises(ConnectionError, match="does not answer"):
        files_of_hub.local_files(f"{SET}/texts")
    assert files_of_hub.cached_files(f"{SET}/texts") == []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert files_of_hub.local_files(address) == files
    with pytest.raises(ConnectionError, match="not in the cache, and HF_HUB_OFFLINE=1 forbids downloading it"):
        files_of_hub.local_files(f"{SET}/texts")


@pytest.mark.usefixtures("one_device")
def test_a_file_of_a_data_set_is_predicted(films: Hub):
    done(
        "predict",
        GOLDEN / "bert_classify_3",
        "--input",
        f"{SET}/data/test.csv",
        "--text",
        "text",
        "--to",
        "answers.jsonl",
    )
    assert "a tall tale" in Path("answers.jsonl").read_text("utf-8")


def test_what_names_no_file_of_the_hub_imports_nothing_of_it():
    code = "import sys, contexture.train.settings.run_file, contexture.data.tasks.read.read_examples as r; "
    code += "r.open_source('a.tsv'); assert 'huggingface_hub' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
@pytest.mark.usefixtures("one_device")
def test_a_training_resumes_with_the_commit_that_it_began_with(films: Hub, capsys: pytest.CaptureFixture[str]):
    words = [
        "finetune",
        GOLDEN / "bert_3_steps",
        "--task.kind",
        "classify",
        "--task.train",
        f"{SET}/data/train-0.parquet",
    ]
    words += ["--data.batch", "4", "--log.no-tensorboard", "--dir", "run", "--steps"]
    done(*words, "1")
    pinned = read(Path("run")).run.task.train
    assert pinned == (f"hf://datasets/owner/films@{'1' * 40}/data/train-0.parquet",)
    films.add("datasets/owner/films", **{"data/train-0.parquet": b"PAR1"})
    files_of_hub._download.cache_clear()
    done(*words, "2")
    assert read(Path("run")).run.task.train == pinned
    words[5] = f"{SET}@{'2' * 40}/data/train-0.parquet"
    code, err = run_command(capsys, *words, "3")
    assert code == 2 and "train-0.parquet is not what it was when" in err
