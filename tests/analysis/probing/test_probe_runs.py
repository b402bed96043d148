"""Probes of runs of the three families, from features to files and figures."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contexture.analysis.options import ProbeOptions
from contexture.analysis.probing import probe_figure, span_features
from contexture.analysis.probing.probe import probe
from contexture.analysis.probing.probe_figure import draw_probes
from contexture.analysis.probing.probe_rows import FILE, ProbeRow, read_rows, write_rows
from contexture.analysis.probing.target_types import Sentence, Target
from contexture.analysis.trained_model import TrainedModel
from contexture.data.errors import DataError
from contexture.train.errors import CheckpointError
from tests.helpers.commands import json_of, run_command
from tests.helpers.logs import logged
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, close
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")

RUNS = ("bert", "gpt", "elmo")
TEXTS = [("the", "old", "cat", "sees", "a", "riverbank"), ("two", "apples"), ("my", "brother", "paints", "the", "sea")]
FAST = ProbeOptions(lr=1e-2, epochs=2, batch=16)


def _features(model: TrainedModel, folder: Path, texts=TEXTS, **options):
    spans = {words: np.array([word != "old" for word in words]) for words in texts}
    return span_features.computed_features(model, dict.fromkeys(texts, "x:1"), spans, folder, **options)


@pytest.mark.parametrize("name", [RUNS[0], *long(*RUNS[1:])])
def test_a_spans_units_are_the_pieces_of_its_words(tmp_path, name):
    model = TrainedModel(GOLDEN / name)
    with _features(model, tmp_path) as features:
        for number, words in enumerate(TEXTS):
            expected = model.embed([list(words)], of="words", layers="all")[0]
            assert expected.shape[:2] == (model.model.config.layers + 1, len(words))
            for first, behind in ((0, 1), (len(words) - 1, len(words))):
                units = features.units_of(number, first, behind)
                assert units is not None
                close(features.units_UND[slice(*units)].mean(0), expected[:, first], tolerance=1e-4)
            # A span of several words has the pieces of all of them.
            pieces = model.embed([" ".join(words)], of="tokens", layers="all")[0]
            ends = int(name == RUNS[0])
            units = features.units_of(number, 2 if number == 0 else 0, len(words))
            assert units is not None
            whole = pieces[:, ends : pieces.shape[1] - ends].swapaxes(0, 1)
            close(features.units_UND[slice(*units)], whole[-(units[1] - units[0]) :], tolerance=1e-4)
            assert units[1] - units[0] == len(whole) or number == 0


@pytest.mark.parametrize("name", [RUNS[0], *long(*RUNS[1:3])])
def test_features_do_not_depend_on_the_batch_nor_on_where_they_are_kept(tmp_path, name):
    model = TrainedModel(GOLDEN / name)
    with _features(model, tmp_path, batch=1) as one, _features(model, tmp_path, batch=32, in_memory=0) as many:
        assert isinstance(many.units_UND, np.memmap) and not isinstance(one.units_UND, np.memmap)
        close(one.units_UND, many.units_UND)
    assert not list(tmp_path.iterdir())


def test_a_disk_without_room_is_one_line(tmp_path, monkeypatch):
    usage = span_features.shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(span_features.shutil, "disk_usage", lambda folder: usage)
    with (
        pytest.raises(CheckpointError, match=r"GB are to be stored .* 0\.0 GB are free; make room"),
        _features(TrainedModel(GOLDEN / RUNS[0]), tmp_path, in_memory=0),
    ):
        pass


def _sentences(count: int, *extra: Sentence) -> list[Sentence]:
    rng = np.random.default_rng(count)
    words = [("the", "cat"), ("a", "river"), ("two", "stars"), ("my", "letter")]
    return [
        Sentence((*words[n], "sees"), (Target((0, 1), (1, 2), (f"l{n % 2}",)), Target((1, 2), (2, 3), ("obj",))), "x:1")
        for n in rng.integers(4, size=count)
    ] + list(extra)


@pytest.mark.parametrize("name", [RUNS[1], *long(RUNS[0], *RUNS[2:])])
def test_every_family_is_probed(tmp_path, name):
    sets = {"edges": _sentences(24)}
    (row,) = probe(GOLDEN / name, sets, {"edges": _sentences(10)}, folder=tmp_path, how=FAST)
    layers = TrainedModel(GOLDEN / name).model.config.layers
    assert row["layers"] == list(range(layers + 1)) and row["split"] == "dev"
    assert row["targets"] == {"train": 48, "dev": 20} and row["labels"] == 3
    assert len(row["cumulative_f1"]) == layers + 1 == len(row["weights"])
    assert row["f1"] == row["cumulative_f1"][-1] and row["lexical_f1"] == row["cumulative_f1"][0]
    assert_close(sum(row["weights"]), 1, atol=1e-6)
    assert row["f1"] > 0 and row["selectivity"] == row["f1"] - row["control_f1"]
    json.dumps(row)


def test_layers_may_be_probed_alone_and_mixes_of_some(tmp_path):
    sets, dev = {"edges": _sentences(24)}, {"edges": _sentences(10)}
    (each,) = probe(GOLDEN / RUNS[0], sets, dev, dev, folder=tmp_path, how=replace(FAST, layers="each"))
    assert each["split"] == "test" and len(each["layer_f1"]) == len(each["layers"]) == len(each["layer_selectivity"])
    assert each["f1"] == each["layer_f1"][each["best_layer"]] and "weights" not in each
    (two,) = probe(GOLDEN / RUNS[0], sets, dev, folder=tmp_path, how=replace(FAST, layers="0,2", control=False))
    assert_close(two["centre_of_gravity"], 2 * two["weights"][1], rtol=1e-6)
    assert "selectivity" not in two and "cumulative_f1" not in two


@pytest.mark.long
def test_one_layer_may_be_probed(tmp_path):
    sets, dev = {"edges": _sentences(24)}, {"edges": _sentences(10)}
    (top,) = probe(GOLDEN / RUNS[0], sets, dev, folder=tmp_path, how=replace(FAST, layers="2", control=False))
    assert top["layers"] == [2] and top["weights"] == [1.0] and top["centre_of_gravity"] == 2
    assert "selectivity" not in top and "cumulative_f1" not in top


def test_what_is_left_out_and_what_cannot_be_known_is_counted(tmp_path):
    long = Sentence(("cat",) * 600, (Target((0, 1), (1, 2), ("l0",)), Target((0, 1), (2, 3), ("l1",))), "x:9")
    new = Sentence(("the", "sea"), (Target((0, 1), (1, 2), ("never", "obj")),), "x:8")
    sets, dev = {"edges": _sentences(24, long)}, {"edges": _sentences(10, long, new)}
    with logged() as lines:
        (row,) = probe(GOLDEN / RUNS[0], sets, dev, folder=tmp_path, how=replace(FAST, control=False))
    assert row["left_out"] == {"train": 2, "dev": 2} and row["targets"] == {"train": 48, "dev": 21}
    assert row["unknown_labels"] == {"dev": {"never": 1}}
    text = "\n".join(lines)
    assert "left out 1 of " in text and "sentences, which are longer than the model takes" in text
    assert "edges: 1 labels of the dev set are not in the training set, on 1 targets (never); they count as not" in text


def test_sets_that_do_not_fit_are_one_line(tmp_path):
    long = [Sentence(("cat",) * 600, (Target((0, 1), None, ("x",)),), "x:1")]
    with pytest.raises(DataError, match="edges: every sentence of the train set is longer than the model takes"):
        probe(GOLDEN / RUNS[0], {"edges": long}, {"edges": _sentences(4)}, folder=tmp_path)
    single = [Sentence(("a", "cat"), (Target((0, 1), None, ("x",)),), "x:1")]
    with pytest.raises(DataError, match="the targets of one set are pairs of spans, those of another single"):
        probe(GOLDEN / RUNS[0], {"edges": single}, {"edges": _sentences(4)}, folder=tmp_path)
    with pytest.raises(DataError, match="x:1: targets of 2 and of 1 spans in one set; give one kind"):
        probe(GOLDEN / RUNS[0], {"edges": single + _sentences(1)}, {"edges": single}, folder=tmp_path)
    bare = [Sentence(("a", "cat"), (Target((0, 1), None, ()),), "x:1")]
    with pytest.raises(DataError, match="edges: no target of the training set has a label"):
        probe(GOLDEN / RUNS[0], {"edges": bare}, {"edges": single}, folder=tmp_path)


@pytest.fixture
def spans(tmp_path, monkeypatch) -> Path:
    """A folder with spans of words, and one of files that are none."""
    for name, count in (("train", 24), ("dev", 10)):
        rows = [
            {"words": s.words, "targets": [{"span1": t.span1, "span2": t.span2, "label": t.labels} for t in s.targets]}
            for s in _sentences(count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.conllu").write_text("1\tcat\t_\tNOUN" + "\t_" * 6 + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _words(*more: object, runs=(GOLDEN / RUNS[0],), to="probes") -> list[object]:
    return ["probe", *runs, "--train", "train.jsonl", "--dev", "dev.jsonl", "--to", to, "--epochs", "1", *more]


@pytest.fixture
def unwritten(monkeypatch) -> None:
    """Figures are made, but their files hold nothing: to lay them out and write them takes most of a small probe."""

    def save(draw, folder: Path, name: str, theme: str = "light") -> list[Path]:
        assert draw(theme).axes
        files = [folder / f"{name}.{kind}" for kind in ("png", "svg", "pdf")]
        for file in files:
            file.touch()
        return files

    monkeypatch.setattr(probe_figure, "save_pictures", save)


@pytest.mark.long
def test_the_command_writes_pictures(spans):
    runs = (GOLDEN / RUNS[0], GOLDEN / RUNS[1])
    last = json_of(*_words("--no-control", "--step", "all", runs=runs))
    assert len(last["figures"]) == 6 and all((spans / file).stat().st_size > 2000 for file in last["figures"])


@pytest.mark.usefixtures("unwritten")
def test_the_command_keeps_the_rows_of_several_calls_and_draws_them(spans):
    first = json_of(*_words("--no-control"))
    assert [row["task"] for row in first["probes"]] == ["train"] and first["to"] == f"probes/{FILE}"
    assert first["figures"] == ["probes/probe.png", "probes/probe.svg", "probes/probe.pdf"]
    json_of(*_words("--task", "mine", "--no-control"))
    both = (GOLDEN / RUNS[0], shutil.copytree(GOLDEN / RUNS[0], spans / "another"))
    last = json_of(*_words("--task", "mine", "--no-control", "--step", "all", runs=both))
    rows = read_rows(spans / "probes")
    assert [(Path(row["run"]).name, row["task"]) for row in rows] == [
        (RUNS[0], "train"), (RUNS[0], "mine"), ("another", "mine"),
    ]  # fmt: skip
    assert last["figures"][3:] == ["probes/steps.png", "probes/steps.svg", "probes/steps.pdf"]
    assert all((spans / file).is_file() for file in last["figures"])


@pytest.mark.usefixtures("unwritten")
@pytest.mark.parametrize("count", [2, *long(3)])
def test_several_seeds_have_mean_and_deviation_of_probes_trained_alone(spans, capsys, count):
    alone = [json_of(*_words("--seed", 3 + n, to=f"alone{n}"))["probes"][0] for n in range(count)]
    (row,) = json_of(*_words("--seed", 3, "--seeds", count, "--table", "t.csv"))["probes"]
    assert (
        row["seeds"] == count
        and {name: x for name, x in row.items() if name not in ("seeds", "over_seeds")} == alone[0]
    )
    assert {"f1", "lexical_f1", "centre_of_gravity", "selectivity", "control_f1"} <= row["over_seeds"].keys()
    for name in ("f1", "centre_of_gravity", "selectivity"):
        values = np.array([each[name] for each in alone])
        expected = values.sum() / count, (((values - values.sum() / count) ** 2).sum() / (count - 1)) ** 0.5
        spread = row["over_seeds"][name]
        assert_close([spread["mean"], spread["deviation"]], expected, rtol=1e-9, atol=1e-12)
    assert read_rows(spans / "probes") == [row]
    head, line = (spans / "t.csv").read_text().splitlines()
    assert head.startswith("task,f1,f1 deviation,") and line.startswith(f"train,{row['over_seeds']['f1']['mean']},")
    code, err = run_command(capsys, *_words("--seeds", "0"))
    assert code == 2 and "seeds=0 is not a number of at least 1" in err


@pytest.mark.usefixtures("unwritten")
def test_people_see_the_main_figures(spans, capsys):
    code, _ = run_command(capsys, *_words("--layers", "each", "--task", "mine"))
    assert code == 0
    from contexture.cli import main as cli

    assert cli.main([str(word) for word in _words("--no-control")]) == 0
    out = capsys.readouterr().out
    assert "lexical_f1  centre_of_gravity" in out and "gamma" not in out


MISTAKES = {
    "layer": (["--layers", "9"], "DataError: layers=9 are not all, each, or numbers from 0 to 2 with commas between"),
    "layers": (["--layers", "top"], "DataError: layers=top are not all, each, or numbers"),
    "step": (["--step", "7777777"], "holds no checkpoint of step 7777777"),
    "epochs": (["--epochs", "0"], "ConfigError: epochs=0 is not a number of at least 1"),
    "rate": (["--lr", "0"], "ConfigError: lr=0.0 is not above 0"),
    "nan": (["--lr", "nan"], "ConfigError: lr=nan is not above 0"),
    "seed": (["--seed", "-1"], "ConfigError: seed=-1 is not in [0, 2^31)"),
    "file": (["--test", "tset.jsonl"], "DataError: tset.jsonl: --test names no such file; check the path"),
    "task": (["--train", "a.conllu"], "DataError: a.conllu: which of its labels to probe is not given; give --task"),
    "name": (["--train", "a.conllu", "--task", "pso"], "DataError: there is no task 'pso' (did you mean pos?); give"),
    "to": (["--to", "a.conllu"], "DataError: a.conllu: is a file; give --to a folder"),
    "empty": (["--to", ""], "ConfigError: to= is empty; give --to a path"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(spans, capsys, case):
    words, line = MISTAKES[case]
    given = dict(zip(words[::2], words[1::2], strict=True))
    base = {"--train": "train.jsonl", "--dev": "dev.jsonl", "--to": "probes"} | given
    before = sorted(spans.iterdir())
    code, err = run_command(capsys, "probe", GOLDEN / RUNS[0], *(word for pair in base.items() for word in pair))
    assert code == 2 and line in err and len(err.splitlines()) == 1, err
    assert sorted(spans.iterdir()) == before


def test_a_folder_that_is_no_run_is_one_line(spans, capsys):
    code, err = run_command(capsys, *_words(runs=(spans,)))
    assert code == 2 and "is not a run: it holds no run.json" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"probes": [1]}', '{"probes": [{"run": 1}]}', '{"probes": 3}'])
def test_another_file_of_that_name_is_not_written_over(spans, capsys, text):
    (spans / "probes").mkdir()
    (spans / "probes" / FILE).write_text(text)
    code, err = run_command(capsys, *_words())
    assert code == 2 and f"probes/{FILE} holds no results of probes; give --to another folder" in err
    assert (spans / "probes" / FILE).read_text() == text


def _row(task: str, step: int, **more: object) -> ProbeRow:
    row = {"run": "runs/a", "step": step, "task": task, "probes": "cumulative", "layers": [0, 1, 2], "f1": 0.5}
    row |= {"weights": [0.2, 0.3, 0.5], "centre_of_gravity": 1.3, "lexical_f1": 0.4, "expected_layer": 1.2}
    return {**row, "differentials": [0.08, 0.02], **more}


def test_a_row_takes_the_place_of_its_older_one(tmp_path):
    write_rows(tmp_path, [_row("pos", 1), _row("pos", 2)])
    write_rows(tmp_path, [_row("pos", 1, f1=0.9), _row("pos", 1, layers=[2])])
    assert [(row["step"], row["layers"], row["f1"]) for row in read_rows(tmp_path)] == [
        (2, [0, 1, 2], 0.5), (1, [0, 1, 2], 0.9), (1, [2], 0.5),
    ]  # fmt: skip


@pytest.mark.parametrize("written", [False, *long(True)])
def test_figures_have_the_newest_step_and_a_map_of_all(tmp_path, written, request):
    if not written:
        request.getfixturevalue("unwritten")
    each = {"probes": "each", "layer_f1": [0.1, 0.2, 0.3], "layer_selectivity": [0.0, 0.1, 0.1], "best_layer": 2}
    rows = [_row("pos", 1), _row("pos", 12, f1=0.75), _row("srl", 1, expected_layer=None), _row("ner", 1, **each)]
    files = draw_probes(rows, tmp_path)
    kinds = ("png", "svg", "pdf")
    assert [file.name for file in files] == [f"{name}.{kind}" for name in ("probe", "steps") for kind in kinds]
    assert [file.name for file in draw_probes(rows[2:], tmp_path)] == [f"probe.{kind}" for kind in kinds]
    assert draw_probes([_row("pos", 1, layers=[2], weights=[1.0], differentials=[])], tmp_path)
