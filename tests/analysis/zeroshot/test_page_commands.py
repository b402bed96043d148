"""The commands of docs/zeroshot.md run as they are written there, on files in their publishers' forms."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import contexture
from tests.conftest import ROOT
from tests.helpers.commands import json_of
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
PAGE = (ROOT / "docs" / "zeroshot.md").read_text("utf-8")
(BLOCK,) = re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)
COMMANDS = [shlex.split(line) for line in BLOCK.replace("\\\n", " ").splitlines()]
SWAG = """,video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label
0,lsmdc1052,18313,the cat sees. It,the cat sees.,It,gold,"pats, then saunters.",turns.,walks slowly.,wheels around.,2
1,anetv_dm5,18419,my brother paints. He,my brother paints.,He,gold,looks.,"stops, here.",exits.,pulls.,0
"""
STORY = "".join(f"{n} the cat sees a dog .\n" for n in range(1, 21))
FILES = {
    "lambada_test.jsonl": '{"text": "the cat sees the dog"}\n{"text": "a small dog likes my brother"}\n',
    "cbtest_CN_test_2500ex.txt": f"{STORY}21 the XXXXX sees .\tcat\t\tcat|dog|sea|bird\n\n",
    "swag.csv": SWAG,
    "blimp/data/anaphor_number_agreement.jsonl": json.dumps({
        "sentence_good": "the cats see", "sentence_bad": "the cats sees", "UID": "anaphor_number_agreement",
        "linguistics_term": "anaphor_agreement", "field": "morphology",
    }) + "\n",
    "wiki.test.tokens": " \n = The cat = \n \n the cat sees a dog . \n a dog sees the sea . \n",
    "coqa-dev-v1.0.json": json.dumps({"data": [
        {"story": "the cat sees", "questions": [{"input_text": "Who?"}], "answers": [{"input_text": "the cat"}]}
    ]}),
    "news.jsonl": '{"article": "the cat sees the dog", "summary": "cat sees"}\n',
    "test.tsv": "en\tfr\nthe cat\tle chat\n",
    "dev.tsv": "en\tfr\n" + "".join(f"dog {n}\tchien {n}\n" for n in range(5)),
}  # fmt: skip


@pytest.fixture(scope="module")
def long_gpt(text_folder: Path, tmp_path_factory) -> Path:
    """A GPT that has room for what it is to write, untrained."""
    folder = tmp_path_factory.mktemp("zeroshot") / "gpt"
    small = {"model.layers": 1, "model.hidden": 16, "model.heads": 2, "model.ffn": 16, "model.vocab": 280,
             "model.length": 256, "data.length": 32, "data.batch": 2, "steps": 1}  # fmt: skip
    contexture.pretrain("gpt.tiny", {"data.path": str(text_folder), "dir": str(folder), **small})
    return folder


def run_in(folder: Path, command: list[str], gpt: Path) -> dict:
    """Runs a command in a folder that holds its files and `runs/gpt`; returns its result."""
    shutil.copytree(gpt, folder / "runs" / "gpt")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    program, *words = command
    assert program == "contexture"
    return json_of(*words)


def test_the_swag_command_of_the_page_reads_the_published_columns(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (command,) = (each for each in COMMANDS if "choice" in each)
    assert run_in(tmp_path, command, GOLDEN / "gpt")["examples"] == 2
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["the cat sees. It", "my brother paints. He"]
    assert [row["label"] for row in rows] == [2, 0]
    assert rows[0]["choices"] == ["pats, then saunters.", "turns.", "walks slowly.", "wheels around."]


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[command.index("--task") + 1])
def test_a_command_of_the_page_runs_as_it_is_written(command: list[str], long_gpt: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_in(tmp_path, command, long_gpt)["task"] in command
