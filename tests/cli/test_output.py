"""Results for people fit the terminal, and for programs stay a record per line."""

import json
import math
import os

import pytest

from contexture.cli import main as cli
from contexture.cli.output import fit_column, json_line, print_result, results_alone
from tests.helpers.commands import run_command
from tests.train.run.test_formats import GOLDEN

COMPARISON = {
    "runs": [
        {"run": f"runs/{name}", "steps": 2000, "loss": 2.345678, "held_out_loss": 2.456789,
         "best_held_out_loss": None, "best_step": 1900, "tokens_per_second": 123456.789}
        for name in ("a-long-name", "another-long-name")
    ],
    "differences": [
        {"setting": "data.path", "a-long-name": "/some/folder/text/language.txt", "another-long-name": "text.txt"},
        {"setting": "optim.skip-rule", "a-long-name": "never, as the original", "another-long-name": "when not finite"},
    ],
}  # fmt: skip
LONG = {"run": "r", "convention": " ".join(["each document alone, its first token"] * 5), "to": f"/{'long/' * 20}"}


def printed(capsys: pytest.CaptureFixture[str], result: dict, width: int | None) -> list[str]:
    print_result(result, width=width)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [60, 80, 132])
def test_tables_are_no_wider_than_the_terminal_and_lose_nothing(capsys, width):
    lines = printed(capsys, COMPARISON, width)
    assert max(map(len, lines)) <= width
    text = "".join("".join(lines).split())
    for word in ("best_held_out_loss", "2.45679", "123457", "runs/another-long-name", "optim.skip-rule", "1900"):
        assert word in text
    assert sum("2.45679" in line for line in lines) == 2  # figures are whole


def test_json_has_null_where_a_figure_is_not_defined():
    rows = [{"perplexity": math.inf, "loss": 0.1}]
    result = {"pairs": 1, "spearman": math.nan, "rows": rows, "shares": (1.0, -math.inf)}
    assert json.loads(json_line(result), parse_constant=lambda name: pytest.fail(name)) == {
        "pairs": 1, "spearman": None, "rows": [{"perplexity": None, "loss": 0.1}], "shares": [1.0, None]
    }  # fmt: skip


def test_a_long_value_goes_on_below_its_beginning_and_a_path_stays_whole(capsys):
    lines = printed(capsys, LONG, 80)
    assert lines[1].startswith("convention  ") and lines[2].startswith(" " * 27 + lines[2].strip()[:5])
    assert all(len(line) <= 80 for line in lines[:-1]) and LONG["to"] in lines[-1]
    assert " ".join(" ".join(lines).split()).count("each document alone, its first token") == 5


def test_a_word_that_fits_a_line_of_its_own_stands_below_its_name(capsys):
    digest = "0123456789abcdef" * 4
    assert printed(capsys, {"fingerprint": digest, "to": "here"}, 80)[:2] == ["fingerprint", f"  {digest}"]
    assert printed(capsys, {"in": {"fingerprint": digest}}, 80)[1:] == ["  fingerprint", f"    {digest}"]
    assert printed(capsys, {"fingerprint": digest}, None) == [f"fingerprint                {digest}"]


def test_texts_beside_names_are_broken_within_their_column():
    text = "memory    " + ", ".join(["parameters 0.0165 GiB"] * 6) + "\nfits      yes"
    lines = fit_column(text, 10, 60).split("\n")
    assert len(lines) == 4 and max(map(len, lines)) <= 60 and lines[-1] == "fits      yes"
    assert all(line.startswith(" " * 10 + "parameters") for line in lines[1:-1])
    assert fit_column(text, 10, None) == text


def test_for_a_program_a_value_and_a_record_are_a_line(capsys):
    assert len(printed(capsys, LONG, None)) == 3
    lines = printed(capsys, COMPARISON, None)
    assert len(lines) == 8 and max(map(len, lines)) > 80


def test_lists_are_joined_and_their_figures_short(capsys):
    lines = printed(capsys, {"files": ["a.json", "b.bin"], "missing": [], "weights": [1 / 3, 0.25, 1.0]}, None)
    assert [line.split(None, 1)[1] for line in lines] == ["a.json, b.bin", "–", "0.333, 0.25, 1"]
    lines = printed(capsys, {"path": (), "no_decay": ("norm", "bias"), "text": ""}, None)
    assert [line.split(None, 1)[1] for line in lines] == ["–", "norm, bias", "–"]
    table = [{"path": "backbone/norm", "shape": [128, 64]}, {"path": "bias", "shape": []}]
    assert printed(capsys, {"table": table}, None)[2].split(None, 1) == ["backbone/norm", "128, 64"]


@pytest.mark.parametrize("argv", [["recipes"], ["show", "bert.tiny"]])
def test_the_lists_of_recipes_and_parameters_fit_a_terminal(capsys, monkeypatch, argv):
    monkeypatch.setattr("contexture.cli.main.terminal_width", lambda: 80)
    assert cli.main(argv) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_what_libraries_in_c_print_is_apart_from_results(capfd):
    with results_alone():
        os.write(1, b"reached\n")
    os.write(1, b"result\n")
    assert capfd.readouterr() == ("result\n", "reached\n")


def test_a_run_is_shown_by_its_name_alone(capsys):
    code, err = run_command(capsys, "show", GOLDEN / "bert", "--model.layers", "3")
    assert code == 2 and "show: --model.layers is for contexture pretrain and finetune" in err
    code, err = run_command(capsys, "show", "bert.tiny", GOLDEN / "bert")
    assert code == 2 and "show bert.tiny: unrecognised argument" in err
