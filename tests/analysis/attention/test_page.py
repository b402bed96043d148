"""The page of a text's attention: it holds its data in few bytes, exactly as it says, and nothing else acts in it."""

import base64
import dataclasses
import hashlib
import json
import re
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import contexture
from contexture.analysis.attention import write_page as pages
from contexture.cli import main as cli
from contexture.data.errors import DataError
from contexture.models.families import build
from tests.helpers.parity_rule import assert_close, worst
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
ATTACK = "</script><!--"


def _page(tmp_path: Path, run: str, **options: Any) -> str:
    model, to = contexture.open(GOLDEN / run), tmp_path / "page.html"
    text = options.pop("text", "the cat")
    title = options.pop("title", "a run")
    with model.computing():
        pages.write_page(to, title, model, text, **options)
    return to.read_text("utf-8")


def _block(page: str, name: str) -> str:
    (found,) = re.findall(rf'<script type="[a-z/]+" id="{name}">(.*?)</script>', page, re.S)
    return found


def _numbers(page: str, name: str) -> np.ndarray:
    low, high = np.frombuffer(zlib.decompress(base64.b64decode(_block(page, name))), np.uint8).reshape(2, -1)
    return low | high.astype(np.uint16) << 8


def test_a_page_holds_the_maps_rounded_as_it_says(tmp_path: Path):
    page = _page(tmp_path, "bert", layers=2)
    data = json.loads(_block(page, "data"))
    maps = contexture.open(GOLDEN / "bert").attention("the cat", layers=2)
    assert data["tokens"] == maps["tokens"] and data["layers"] == data["neurons"] == [2] and data["decimals"] == 4
    got = _numbers(page, "weights-2").reshape(maps["weights"].shape[1:]) / 10**4
    assert_close(got, maps["weights"][0], rtol=0, atol=0.5001e-4)
    got = _numbers(page, "neurons-2").view(np.float16).reshape(2, *maps["keys"].shape[1:]).astype(np.float32)
    assert_close(got[0], maps["queries"][0], rtol=2**-11, atol=1e-7)
    assert_close(got[1], maps["keys"][0], rtol=2**-11, atol=1e-7)
    assert "rounded to 4 decimals" in data["notes"]


def test_of_many_weights_three_decimals_are_kept_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "FINE_WEIGHTS", 10)
    page = _page(tmp_path, "gpt")
    data = json.loads(_block(page, "data"))
    assert data["decimals"] == 3 and "rounded to 3 decimals" in data["notes"]
    maps = contexture.open(GOLDEN / "gpt").attention("the cat")
    got = _numbers(page, "weights-1").reshape(maps["weights"].shape[1:]) / 10**3
    assert worst(abs(got - maps["weights"][0]).ravel()) <= 0.5001e-3


def test_thousandths_of_long_rows_take_few_bits_however_they_are_spread():
    """144 maps of 512 rows: alike, of one large weight, and as an exponential distribution, the worst of a mean."""
    rng = np.random.default_rng(0)
    rows = {"alike": np.full((256, 512), 1 / 512), "one": np.eye(512)[:256], "worst": rng.exponential(1, (256, 512))}
    for name, x in rows.items():
        numbers = np.round(x / x.sum(1, keepdims=True) * 1000).astype(np.uint16)
        assert len(pages.packed(numbers)) * 144 * 2 < 20e6, name


def test_queries_and_keys_that_have_room_are_spread_over_all_layers():
    sizes = {n: "x" * 10 for n in range(1, 13)}
    assert pages._spread(range(1, 13), sizes, 120) == list(range(1, 13))
    assert pages._spread(range(1, 13), sizes, 35) in ([1, 6, 12], [1, 7, 12])
    assert pages._spread(range(1, 13), sizes, 15) == [1]
    assert pages._spread(range(1, 13), sizes, 5) == []


def test_text_stays_text_and_nothing_but_the_pages_own_script_may_run(tmp_path: Path):
    page = _page(tmp_path, "gpt", text=ATTACK, title=ATTACK)
    assert page.count("<script") == page.count("</script>") == 2 + 2 * 2  # data, the script, two arrays of two layers
    assert "<!--" not in page and ATTACK not in page
    assert "".join(json.loads(_block(page, "data"))["tokens"]) == ATTACK
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="(.*?)"', page)
    for name in ("script", "style"):
        body = re.findall(rf"<{name}>(.*?)</{name}>", page, re.S)[-1]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; img-src data:; ") and "http" not in policy
    assert not re.findall(r"https?://|//[a-z]+\.[a-z]+/| src=| style=", page)


def test_control_characters_are_shown_and_do_not_act(tmp_path: Path):
    page = _page(tmp_path, "gpt", text="a\x1bb", title="a\u202eb")
    assert "".join(json.loads(_block(page, "data"))["tokens"]) == "a\\x1bb"
    assert not set(page) & {"\x1b", "\u202e"}


@pytest.mark.parametrize(
    ("run", "options", "groups", "causal"),
    [
        ("bert", {"second": "a"}, ["[CLS]", "[SEP]"], False),
        ("gpt", {}, ["the first token"], True),
    ],
)
def test_a_page_says_what_a_query_sees_and_which_tokens_can_be_hidden(
    tmp_path: Path, run: str, options: dict[str, Any], groups: list[str], causal: bool
):
    data = json.loads(_block(_page(tmp_path, run, **options), "data"))
    assert list(data["groups"]) == groups and data["causal"] == causal and data["windows"] == [0, 0]
    assert data["groups"].get("[SEP]", [1])[-1] == (len(data["tokens"]) - 1 if "[SEP]" in groups else 1)


def test_a_page_says_which_layers_are_banded(tmp_path: Path):
    model, to = contexture.open(GOLDEN / "gpt"), tmp_path / "page.html"
    banded = build(dataclasses.replace(model.model.config, local_window=3))
    with model.computing():
        opened: Any = SimpleNamespace(model=banded, params=model.params, tokenizer=model.tokenizer)
        pages.write_page(to, "", opened, "the cat sat")
    page = to.read_text("utf-8")
    assert json.loads(_block(page, "data"))["windows"] == [0, 3]
    count = len(json.loads(_block(page, "data"))["tokens"])
    seen = np.tri(count, dtype=bool) & ~np.tri(count, k=-3, dtype=bool)
    weights = _numbers(page, "weights-2").reshape(2, count, count)
    assert weights[:, seen].any() and not weights[:, ~seen].any()


def test_an_elmos_page_has_gates_and_the_mixes_of_its_task(tmp_path: Path):
    data = json.loads(_block(_page(tmp_path, "elmo_tag", text="the cat sat", layers=2), "data"))
    gates = contexture.open(GOLDEN / "elmo_tag").gates("the cat sat")
    assert data["views"] == ["gates", "mix"] and data["tokens"] == ["the", "cat", "sat"] and data["layers"] == [2]
    assert_close(np.array(data["means"]), gates["means"][:, 1:], rtol=0, atol=0.5001e-4)
    shares = gates["mixes"][0]["shares"]
    assert shares is not None
    assert_close(np.array(data["mixes"][0]["shares"]), shares, rtol=0, atol=0.5001e-4)
    plain = json.loads(_block(_page(tmp_path, "elmo", text="the cat sat"), "data"))
    assert plain["views"] == ["gates"] and plain["mixes"] == []


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        ("elmo", {"heads": [1]}, "heads: an ELMo has no attention and no heads; leave heads out: the page"),
        ("elmo", {"second": "b"}, "second: an ELMo reads each text alone; leave the second one out"),
        ("elmo", {"layers": 5}, "layers: 5 is none of the model's layers, 1 to 2; give some of these"),
        ("elmo", {"text": ""}, "text= is empty; give a text"),
    ],
)
def test_what_an_elmo_has_not_is_one_clear_line(tmp_path: Path, run: str, options: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        _page(tmp_path, run, **options)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--to page.htm", "--to page.htm: a page ends in .html; give such a name"),
        ("--to none/page.html", "--to none/page.html: its folder is not there; make it, or give another name"),
        ("--to page.html --layers 1,x", "--layers 1,x: 'x' is no number; give all, or numbers from 1 such as 1,6,12"),
        ("--to page.html --heads -1", "--heads -1: '-1' is no number; give all, or numbers from 1"),
        ("--to page.html --heads 3", "heads: 3 is none of the model's heads, 1 to 2; give some of these"),
        ("--to page.html --step 7", "holds no checkpoint of step 7"),
    ],
)
def test_a_mistake_is_one_clear_line_and_no_page(tmp_path: Path, capsys, monkeypatch, words: str, message: str):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["attention", str(GOLDEN / "bert"), "--text", "the cat", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert not out and len(err.splitlines()) == 1 and message in err, err
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_the_page_has(tmp_path: Path, capsys):
    to = tmp_path / "page.html"
    words = ["--text", "the cat", "--second", "sat", "--layers", "2", "--heads", "1,2", "--to", str(to), "--json"]
    assert cli.main(["attention", str(GOLDEN / "bert"), *words]) == 0
    said = json.loads(capsys.readouterr().out)
    data = json.loads(_block(to.read_text(), "data"))
    assert said["bytes"] == to.stat().st_size and said["tokens"] == len(data["tokens"])
    assert said["layers"] == said["query_key_layers"] == [2] and said["heads"] == [1, 2] and said["step"] == 120
    assert data["title"] == "Attention in bert, step 120: “the cat”"
