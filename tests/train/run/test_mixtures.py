"""A pretraining on several texts in shares: resumed, measured by source, and every mistake in one line."""

import json
import shutil
from pathlib import Path

import jax
import pytest

import contexture
from contexture.cli import main as cli
from contexture.data.mixed_paths import mixture_of
from contexture.data.pretraining import tokenize_corpus
from contexture.data.pretraining.mixture import MixedHeldOut, open_mixture
from contexture.train import mesh as meshes
from contexture.train.evaluation.evaluate import evaluate
from contexture.train.evaluation.held_out import open_held_out
from contexture.train.objectives import objective_of
from contexture.train.run.report import read_metrics
from contexture.train.settings import run_file
from contexture.train.settings.sections import MeshConfig
from contexture.train.step import evaluation_step
from tests.conftest import TINY
from tests.helpers.commands import done, json_of, run_command
from tests.train.run.test_resume import assert_same_run

pytestmark = pytest.mark.usefixtures("one_device")
FEW = ["--steps", 4, "--save.every", 2, "--log.every", 1, "--optim.warmup", 1, "--evaluate.every", 2]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, text_folder: Path) -> Path:
    """A text, one that was prepared, and their vocabulary."""
    to = tmp_path_factory.mktemp("mixtures")
    done("tokenizer", "wordpiece", "--input", text_folder, "--vocab-size", 120, "--to", to / "words")
    shutil.copy(text_folder / "text0.txt", to / "raw.txt")
    given = ("--input", text_folder / "text1.txt", "--tokenizer", to / "words", "--dev-fraction", 0.3)
    done("prepare", "bert.tiny", *given, "--to", to / "ready")
    return to


def mixed(sources: Path, *words: object, weights: tuple[float, float] = (0.75, 0.25)) -> list[str]:
    paths = [f"raw={weights[0]}:{sources / 'raw.txt'}", f"ready={weights[1]}:{sources / 'ready'}"]
    return [*map(str, ["pretrain", "bert.tiny", *TINY, "--data.dev-fraction", 0.2, "--data.path", *paths, *words])]


def test_a_mixture_is_trained_on_resumed_and_measured_by_source(sources: Path, tmp_path: Path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done(*mixed(sources, *FEW, "--dir", whole))
    done(*mixed(sources, *FEW, "--dir", parts))
    shutil.rmtree(parts / "checkpoints" / "4")
    done(*mixed(sources, *FEW, "--dir", parts))
    assert_same_run(parts, whole)
    # Only the text that was not prepared has shards of the run's own.
    assert sorted(each.name for each in (whole / "data").iterdir()) == ["raw"]
    records = list(read_metrics(whole / "metrics.jsonl"))
    held = [each for each in records if each["split"] == "dev"]
    assert [each["step"] for each in held] == [2, 4]
    for name in ("loss", "mlm_loss", "mlm_accuracy", "unigram_loss"):
        assert held[-1][name] == pytest.approx((held[-1][f"{name}/raw"] + held[-1][f"{name}/ready"]) / 2, rel=1e-9)
    assert held[-1]["mlm_loss/raw"] != held[-1]["mlm_loss/ready"]
    trained = [each for each in records if each["split"] == "train"]
    assert trained[-1]["passes/raw"] > trained[-1]["passes/ready"] > 0.0
    # Measured again later, and each source by itself.
    measured = json_of("evaluate", whole)["metrics"]
    assert measured["mlm_loss/ready"] == pytest.approx(held[-1]["mlm_loss/ready"], rel=1e-6)
    record = run_file.read(whole)
    store = open_mixture(mixture_of(record.run.data.path), whole / "data")
    model, params, _ = contexture.load(whole)
    mesh = meshes.build(MeshConfig())
    with meshes.use(mesh, "float32"):
        step, objective = evaluation_step(model, objective_of(record.run), mesh), objective_of(record.run)
        both = open_held_out(record.run, store, store.tokenizer, 8)
        assert isinstance(both, MixedHeldOut)
        for source in store.sources:
            alone = open_held_out(record.run, source.shards, store.tokenizer, 8)
            assert alone is not None
            figures, _ = evaluate(step, objective, jax.device_put(params), alone, mesh)
            assert held[-1][f"mlm_loss/{source.name}"] == pytest.approx(figures["mlm_loss"], rel=1e-5)


def test_a_run_keeps_to_the_mixture_that_it_was_started_with(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], start_only: None
):
    run = tmp_path / "run"
    assert cli.main(mixed(sources, "--dir", run, weights=(0.5, 0.5))) == 130
    # Before the first checkpoint another mixture is another run; after it, an error.
    code, printed = run_command(capsys, *mixed(sources, "--dir", run))
    assert code == 130 and "has other settings (--data.path) and no training steps yet; starting over" in printed
    (run / "checkpoints" / "1").mkdir(parents=True)
    code, printed = run_command(capsys, *mixed(sources, "--dir", run, weights=(0.5, 0.5)))
    assert code == 2 and "holds a run with --data.path raw=0.75:" in printed
    code, printed = run_command(capsys, "pretrain", "bert.tiny", *TINY, "--data.path", sources / "ready", "--dir", run)
    assert code == 2 and "holds a run with --data.path raw=0.75:" in printed
    shutil.rmtree(run / "checkpoints" / "1")
    # The text may lie elsewhere by now, if it is the same.
    moved = tmp_path / "moved"
    shutil.copytree(sources, moved)
    assert cli.main(mixed(moved, "--dir", run)) == 130
    (moved / "raw.txt").write_text("Another text.\nOf two lines.\n")
    code, printed = run_command(capsys, *mixed(moved, "--dir", run))
    assert code == 2 and "raw.txt has 28 bytes and had" in printed


@pytest.mark.parametrize(
    ("paths", "line"),
    [
        (["a=1:{0}/ready", "b=1:{0}/ready"], "all sources were prepared with what they hold out; leave data.dev-frac"),
        (
            ["a=1:{0}/ready", "b=1:{0}/nowhere.txt"],
            "nowhere.txt: data.path names no such file or folder; check the path",
        ),
        (["a=1:{0}/ready", "{0}/raw.txt"], "raw.txt has no weight, and another source has one; give each source as"),
        (["a=1:{0}/picture.txt"], "picture.txt:1: not UTF-8"),
        (["a=1:{0}/raw.txt", "b=1:{0}/raw.txt"], "raw.txt: two sources of the mixture hold this file; give it to one"),
    ],
)
def test_mistakes_in_a_mixture_are_one_line(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], paths: list[str], line: str
):
    (sources / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(128, 256)))
    given = [path.format(sources) for path in paths]
    words = ["pretrain", "bert.tiny", *TINY, "--data.dev-fraction", 0.2, "--data.path", *given, "--dir", tmp_path / "r"]
    code, printed = run_command(capsys, *words)
    assert code in (1, 2) and line in printed and "Traceback" not in printed
    assert not (tmp_path / "r" / "checkpoints").exists()


def test_a_vocabulary_is_learned_on_all_texts_of_a_mixture(sources: Path, tmp_path: Path, start_only: None):
    (tmp_path / "b.txt").write_text("zyx zyx.\nzyx qqq.\n\n" * 40)
    paths = [f"a=3:{sources / 'raw.txt'}", f"b=1:{tmp_path / 'b.txt'}"]
    words = ["pretrain", "gpt.tiny", "--data.path", *paths, "--data.length", 16, "--dir", tmp_path / "run"]
    assert cli.main([*map(str, words)]) == 130
    known = json.dumps((tmp_path / "run" / "tokenizer").joinpath("encoder.json").read_text())
    assert "zyx" in known and "river" in known


def test_a_mixture_that_was_stopped_between_two_texts_keeps_its_vocabulary(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_only: None
):
    (tmp_path / "b.txt").write_text("zyx zyx.\nzyx qqq.\n\n" * 40)
    paths = [f"a=3:{sources / 'raw.txt'}", f"b=1:{tmp_path / 'b.txt'}"]
    words = [*map(str, ["pretrain", "bert.tiny", *TINY, "--data.path", *paths, "--dir"])]
    made = tokenize_corpus.prepare

    def stopped(config, tokenizer, to, *more, **options):
        if Path(to).name == "b":
            raise KeyboardInterrupt
        return made(config, tokenizer, to, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(tokenize_corpus, "prepare", stopped)
        assert cli.main([*words, str(tmp_path / "run")]) == 130
    assert [each.name for each in (tmp_path / "run" / "data").iterdir()] == ["a"]
    for name in ("run", "whole"):
        assert cli.main([*words, str(tmp_path / name)]) == 130
    facts = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("run", "whole")]
    assert facts[0]["data"] == facts[1]["data"] and facts[0]["tokenizer"] == facts[1]["tokenizer"]


def test_tables_and_plain_text_may_be_mixed(sources: Path, tmp_path: Path, start_only: None):
    """The column is that of tables alone."""
    rows = (sources / "raw.txt").read_text().split("\n\n")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"body": row}) + "\n" for row in rows))
    paths = [f"t=1:{tmp_path / 't.jsonl'}", f"p=1:{sources / 'raw.txt'}", f"r=1:{sources / 'ready'}"]
    words = [
        "pretrain",
        "bert.tiny",
        *TINY,
        "--data.path",
        *paths,
        "--data.text-column",
        "body",
        "--dir",
        tmp_path / "r",
    ]
    assert cli.main([*map(str, words)]) == 130


@pytest.mark.parametrize("mixed_paths", [True, False])
def test_text_of_another_vocabulary_than_that_of_init_is_refused(
    sources: Path, tmp_path: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str], mixed_paths: bool
):
    """Else its embeddings would stand for other tokens."""
    paths = [f"a=1:{sources / 'ready'}"] if mixed_paths else [sources / "ready"]
    words = ["pretrain", "bert.tiny", *TINY, "--data.path", *paths, "--init.run", tiny_run, "--dir", tmp_path / "r"]
    code, printed = run_command(capsys, *words)
    assert code == 2 and f"{tiny_run} has another vocabulary than the text was tokenised with; prepare the" in printed
