"""Nothing that comes out of a user's files reaches the terminal as a command to it."""

import json
import logging

import pytest

from contexture.cli import main as cli
from contexture.cli.output import print_result, write_out
from contexture.data.visible import visible, visible_json
from contexture.train.run.console import logged_to
from contexture.train.run.report import Report

EVIL = "a\x1b[31mred\x07\x9b2J\u202ecba\u2066x\x7f"
SHOWN = "a\\x1b[31mred\\x07\\x9b2J\\u202ecba\\u2066x\\x7f"


def _is_safe(text: str) -> bool:
    return visible(text) == text and "\x1b" not in text


def test_control_characters_are_escaped_and_all_other_text_stays():
    assert visible(EVIL) == SHOWN
    assert visible("línea\tone\n日本語 ‏עברית 👩‍💻") == "línea\tone\n日本語 ‏עברית 👩‍💻"
    assert visible("a\rb") == "a\\x0db"
    for code in [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]:
        assert (visible(chr(code)) == chr(code)) == (chr(code) in "\t\n")


def test_json_keeps_its_value():
    text = json.dumps({"label": EVIL}, ensure_ascii=False)
    assert _is_safe(visible_json(text)) and json.loads(visible_json(text)) == {"label": EVIL}


def test_lines_tables_results_and_generated_text_are_shown_escaped(capsys, tmp_path):
    report = Report(tmp_path, steps=1, speaks=True, tensorboard=False)
    report.table(EVIL, (EVIL, "in train"), [(EVIL, "1")])
    with logged_to(report.console):
        logging.getLogger("contexture").warning(EVIL)
    print_result({"run": EVIL, EVIL: {EVIL: EVIL}, "rows": [{"label": EVIL, EVIL: 1}], "texts": [[{"token": EVIL}]]})
    write_out(EVIL + "\n\tmore")
    out, err = capsys.readouterr()
    assert _is_safe(out) and _is_safe(err)
    assert out.endswith(SHOWN + "\n\tmore") and err.count(SHOWN) >= 2


@pytest.mark.parametrize("command", ["evaluate", "show", "generate --prompt x", "predict --input x --to y"])
def test_a_file_name_in_an_error_is_shown_escaped(capsys, command):
    name, *more = command.split()
    assert cli.main([name, "runs/" + EVIL, *more]) == 2
    err = capsys.readouterr().err
    assert _is_safe(err) and "\\x1b[31mred" in err and len(err.splitlines()) == 1


@pytest.mark.long
def test_labels_and_cells_of_a_users_file_are_shown_escaped(capsys, tmp_path, tiny_run, one_device):
    rows = "".join(f"the cat {n}\t{EVIL if n % 2 else 'b'}\n" for n in range(20))
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + rows)
    words = ["finetune", tiny_run, "--task.kind", "classify", "--task.train", tmp_path / "t.tsv", "--task.dev-fraction",
             "0.3", "--steps", "2", "--data.batch", "4", "--dir", tmp_path / "run", "--json"]  # fmt: skip
    assert cli.main([str(word) for word in words]) == 0
    out, err = capsys.readouterr()
    assert _is_safe(err) and "\\x1b[31mred" in err and _is_safe(out)
    assert cli.main(["evaluate", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    assert _is_safe(out) and "\\x1b[31mred" in out
