"""Models of the Hugging Face hub by their names, from a hub on this machine."""

import json
from pathlib import Path

import pytest

import contexture
from contexture.interchange.model_card import model_card
from contexture.train.settings.run_file import read
from tests.helpers.commands import done, run_command
from tests.interchange.hub_server import Hub, use_hub

pytestmark = pytest.mark.usefixtures("one_device")
NAME = "owner/small-bert"


def refused(capsys: pytest.CaptureFixture[str], name: str, *parts: str, code: int = 2) -> None:
    """One line, and no run."""
    answer, err = run_command(capsys, "import", "hf", name, "--to", "run")
    assert answer == code and len(err.splitlines()) == 1 and all(part in err for part in parts), err
    assert not Path("run").exists()


def test_a_model_of_the_hub_is_imported_by_its_name(hub: Hub, out: Path):
    commit = hub.add(f"models/{NAME}", out, **{"pytorch_model.bin": b"never read", "tf_model.h5": b"never read"})
    done("import", "hf", NAME, "--to", "run")
    done("import", "hf", out, "--to", "same")
    assert "model.safetensors" in hub.downloads() and not hub.downloads() & {"pytorch_model.bin", "tf_model.h5"}
    record, same = read(Path("run")), read(Path("same"))
    assert record.imported and record.imported.source == f"{NAME}@{commit}" and same.imported
    assert same.imported.source is None and (record.tokenizer, record.labels) == (same.tokenizer, same.labels)
    assert f"| imported from | {NAME}@{commit}, files of" in model_card(Path("run"), record, 0, "hf", 1)


def test_a_revision_names_the_commit_that_is_imported(hub: Hub, out: Path):
    first = hub.add(f"models/{NAME}", out)
    hub.add(f"models/{NAME}", **{"config.json": b"{}"})
    folder = contexture.import_model("hf", f"{NAME}@{first}", "run")
    imported = read(folder).imported
    assert imported and imported.source == f"{NAME}@{first}"


def test_a_local_folder_comes_before_a_model_of_its_name(hub: Hub, out: Path):
    Path("owner").mkdir()
    Path(NAME).symlink_to(out)
    done("import", "hf", NAME, "--to", "run")
    assert not hub.requests


def test_weights_of_another_family_are_not_downloaded(hub: Hub, out: Path, capsys: pytest.CaptureFixture[str]):
    config = json.dumps({"model_type": "llama"}).encode()
    hub.add(f"models/{NAME}", out, **{"config.json": config})
    refused(capsys, NAME, "DataError: ", "model_type is 'llama', not one of bert")
    assert "model.safetensors" not in hub.downloads()


def test_a_model_that_cannot_be_had_is_one_line(hub: Hub, out: Path, capsys: pytest.CaptureFixture[str]):
    hub.add(f"models/{NAME}", out)
    refused(capsys, "owner/no-bert", "DataError: owner/no-bert: no such folder here, and no such model at", "HF_TOKEN")
    refused(capsys, f"{NAME}@v9", f"DataError: {NAME}@v9: the model has no such revision; give a branch")
    hub.gated.add(f"models/{NAME}")
    refused(capsys, NAME, f"DataError: {NAME}: its owner wants to be asked first", "HF_TOKEN")
    refused(capsys, "../owner/x", "DataError: ../owner/x: no such folder; give the one that a model was saved in")


def test_pickled_weights_alone_are_not_downloaded(hub: Hub, out: Path, capsys: pytest.CaptureFixture[str]):
    hub.add(f"models/{NAME}", out)
    files = hub.commits[f"models/{NAME}"][0]
    files["pytorch_model.bin"] = files.pop("model.safetensors")
    refused(capsys, NAME, f"DataError: {NAME}: holds no model.safetensors, and no other weights are downloaded")
    assert "pytorch_model.bin" not in hub.downloads()


def test_without_a_network_the_cache_is_read(
    hub: Hub, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    hub.add(f"models/{NAME}", out)
    done("import", "hf", NAME, "--to", "first")
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")  # where nothing listens
    done("import", "hf", NAME, "--to", "second")
    assert read(Path("first")).imported == read(Path("second")).imported
    refused(capsys, "owner/other", "ConnectionError: owner/other: no such folder here, and", "does not answer", code=1)


@pytest.mark.parametrize(
    "words", [("fill", "--text", "a [MASK]"), ("finetune", "--task.kind", "classify"), ("status",)]
)
def test_a_published_model_in_the_place_of_a_run_is_told_how_to_import(
    words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
):
    for name, line in ((NAME, "a published model of this name becomes a run first"), (folder, "becomes a run first")):
        code, err = run_command(capsys, words[0], name, *words[1:])
        assert code == 2 and f"{line}: contexture import hf {name} --to RUN" in err and len(err.splitlines()) == 1, err
        with pytest.raises(contexture.ConfigError, match=line):
            contexture.open(name)


def test_from_pretrained_is_told_what_loads_a_published_model():
    with pytest.raises(AttributeError, match=r"import_model\('hf', NAME, RUN\) makes a run .* open\(RUN\) loads it"):
        contexture.from_pretrained("google-bert/bert-base-uncased")  # pyright: ignore[reportAttributeAccessIssue]
