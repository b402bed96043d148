"""Every Python example of the README, the documentation and the docstrings runs."""

import json
import re
import shutil
import textwrap
import threading
import urllib.request
from http.server import HTTPServer
from pathlib import Path

import pytest

import contexture
from tests.conftest import ROOT
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_SMALL = {"model.layers": 1, "model.hidden": 16, "model.heads": 2, "model.ffn": 16, "model.vocab": 150,
          "data.length": 16, "data.batch": 4, "steps": 2}  # fmt: skip


def _examples() -> list[tuple[str, str]]:
    """(its place, its code) of each example: blocks of Python in pages, and those that docstrings of ours indent."""
    found = []
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
        found += [(f"{page.name}-{number}", block) for number, block in enumerate(blocks)]
    names = [(name, getattr(contexture, name)) for name in contexture.__all__]
    methods = [(f"TrainedModel.{name}", method) for name, method in vars(contexture.TrainedModel).items()]
    for name, of in names + methods:
        text = textwrap.dedent((of.__doc__ or "").partition("\n")[2])
        blocks = re.findall(r"^Example:\n((?:    .*\n|\n)+)", text, re.M)
        found += [(name, textwrap.dedent(block)) for block in blocks]
    return found


EXAMPLES = _examples()


def test_examples_are_found():
    places = [place for place, _ in EXAMPLES]
    assert {"README.md-0", "open", "load", "recipe", "pretrain", "finetune", "TrainedModel.stream"} <= set(places), (
        places
    )


@pytest.fixture
def runs(request, place, text_folder, tmp_path: Path, monkeypatch) -> Path:
    """A folder with what examples name: runs, text, a treebank and a conversation."""
    (tmp_path / "runs").mkdir()
    shutil.copytree(GOLDEN / "bert", tmp_path / "runs" / "mine")
    gpt = request.getfixturevalue("gpt_run") if place in LONG else GOLDEN / "gpt"
    shutil.copytree(gpt, tmp_path / "runs" / "gpt")
    for name in ("text", "my_text"):
        shutil.copytree(text_folder, tmp_path / name)
    word = "{}\t{}\t_\t{}\t_\t_\t{}\t{}\t_\t_\n"
    cells = [(1, "the", "DET", 2, "det"), (2, "cat", "NOUN", 3, "nsubj"), (3, "sees", "VERB", 0, "root")]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conllu").write_text(("".join(word.format(*cell) for cell in cells) + "\n") * 4)
    turns = {"questions": [{"input_text": "Who sees?"}], "answers": [{"input_text": "the cat"}]}
    (tmp_path / "coqa-dev-v1.0.json").write_text(json.dumps({"data": [{"story": "the cat sees", **turns}]}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Those that train, as test_functions.py does too; those that write 50 tokens, more than the golden GPT takes; and a
# second one of what `open` and `generate` show.
LONG = "README.md-0 README.md-1 pretrain finetune probing.md-0 api.md-1 zeroshot.md-0 load TrainedModel.stream".split()


@pytest.mark.parametrize(
    ("place", "code"),
    [pytest.param(*each, id=each[0], marks=pytest.mark.long if each[0] in LONG else ()) for each in EXAMPLES],
)
def test_an_example_runs(runs, place, code, monkeypatch):
    if "pretrain(" in code:
        shutil.rmtree(runs / "runs" / "mine")  # it is made by the example
        pretrain = contexture.pretrain
        monkeypatch.setattr(contexture, "pretrain", lambda run, options=None: pretrain(run, (options or {}) | _SMALL))
    if "finetune(" in code:
        finetune = contexture.finetune
        quick = {"epochs": 1, "data.batch": 8}
        monkeypatch.setattr(contexture, "finetune", lambda *a, options=None, **k: finetune(*a, options=quick, **k))
    given: dict[str, object] = {"contexture": contexture}
    if code.startswith("for part in model."):
        given["model"] = contexture.open("runs/gpt")
    exec(compile(code, place, "exec"), given)  # noqa: S102  # our own documentation


def test_the_server_of_the_page_answers_over_http(tmp_path: Path, monkeypatch):
    page = (ROOT / "docs" / "evaluation.md").read_text("utf-8").partition("## Answers over HTTP")[2]
    (code,) = re.findall(r"^```py\n(.*?)^```", page, re.M | re.S)
    shutil.copytree(GOLDEN / "bert_classify", tmp_path / "runs" / "intents")
    monkeypatch.chdir(tmp_path)
    servers: list[HTTPServer] = []
    monkeypatch.setattr(HTTPServer, "serve_forever", lambda self: servers.append(self))
    assert code.count("8080") == 1
    exec(compile(code.replace("8080", "0"), "evaluation.md", "exec"), {})  # noqa: S102
    (server,) = servers
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    texts = ["Where is my card?", "the cat"]
    (host, port), body = server.server_address[:2], json.dumps({"texts": texts}).encode()
    with urllib.request.urlopen(f"http://{host}:{port}/", body) as answer:
        assert answer.headers["Content-Type"] == "application/json"
        answers = json.loads(answer.read())["answers"]
    thread.join()
    server.server_close()
    assert answers == contexture.open("runs/intents").predict(texts)
