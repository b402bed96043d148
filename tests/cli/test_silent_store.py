"""A store that stops answering ends every command within its limit, with one line that names the address."""

import random
import re
import subprocess
import time
from collections.abc import Iterator

import pytest

from contexture.cli.commands import COMMANDS
from contexture.data import bucket
from contexture.data.bucket import parse_address
from tests.helpers.buckets import BUCKET, Faults, Server
from tests.helpers.commands import done, run_command
from tests.helpers.jobs import free_port, start_process, wait_until
from tests.helpers.long import long
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")

TRAINED = (
    "--model.layers 2 --model.hidden 32 --model.heads 2 --model.ffn 64 --model.vocab 90 --data.length 32 "
    "--data.max-predictions 5 --data.batch 4 --optim.warmup 2 --save.every 2 --steps 4"
)
WORDS = {
    "pretrain": f"bert.tiny --data.path @/text --dir @new {TRAINED}",
    "finetune": "@/bert --task.kind classify --task.train @/task.tsv --task.dev @/dev.tsv --dir @new --data.batch 4 "
    "--save.every 2 --steps 4",
    "status": "@/bert",
    "compare": "@/bert @/classify --to @new.html",
    "evaluate": "@/classify --dev @/task.tsv --to @new.jsonl",
    "predict": "@/classify --input @/task.tsv --to @new.jsonl",
    "fill": "@/bert --text [MASK]",
    "generate": "@/gpt --input @/prompts.txt --tokens 2",
    "score": "@/gpt --input @/text/a.txt --to @new.html",
    "embed": "@/bert --input @/text/a.txt --to @new.npy",
    "zeroshot": "@/gpt --task lambada --input @/text/a.txt --table @new.tex",
    "attention": "@/bert --text cat --to @new.html",
    "neighbours": "@/bert --input @/text/a.txt --text cat",
    "similarity": "@/bert --input @/pairs.tsv --to @new.html",
    "senses": "@/bert --word the --input @/text/a.txt --to @new.html",
    "layers": "@/tag --to @new.png",
    "probe": "@/bert --train @/spans.jsonl --dev @/spans.jsonl --to @new --epochs 1 --seeds 1",
    "import": "hf @/model --to @new",
    "export": "@/bert hf --to @new",
    "slim": "@/bert",
    "show": "@/shards --to @new.html",
    "plan": "@/bert --topology v5e:2x2",
    "check": "--dir @new",
    "tokenizer": "words --input @/text --to @new",
    "clean": "--input @/text --rules c4 --to @new",
    "prepare": "bert.tiny --input @/text --to @new --tokenizer @/bert/tokenizer",
}
"""Each command with all the addresses that it takes: @/ is the folder of what is read, @new what is written."""
WITHOUT = {"recipes", "completion"}
"""Commands that take no path."""
REFUSED = {"slim", "plan"}
"""Commands that end with a line of another kind: of a run in a bucket, and without the compiler of the devices."""
LINE = r"(gs|s3)://[^ ]+: the bucket's server does not answer within {} s; check the network, and start again"
TEXT = "The cat sees the river in spring.\nMy brother paints the sea.\n\nOne old man finds the letter.\nHe reads it.\n"


@pytest.fixture(scope="module", params=["gs", *long("s3")])
def store(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(f"{request.param}_store")


@pytest.fixture(scope="module")
def place(store: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a folder in the bucket with what the commands read."""
    here = tmp_path_factory.mktemp("silent")
    for name, text in {
        "text/a.txt": TEXT,
        "text/b.txt": TEXT * 40,
        "task.tsv": "text\tlabel\n" + "the cat\tanimal\nthe queen\tperson\n" * 4,
        "dev.tsv": "text\tlabel\nthe dog\tanimal\nthe man\tperson\n",
        "prompts.txt": "the cat\n",
        "pairs.tsv": "sentence1\tsentence2\tscore\nthe cat\tthe sea\t1\na dog\ta dog\t5\nthe man\tthe town\t2\n",
        "spans.jsonl": '{"text": "the cat sees", "targets": [{"span1": [1, 2], "label": "a"}, {"span1": [0, 1], '
        '"label": "b"}]}\n' * 8,
    }.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text, "utf-8")
    done("prepare", "bert.tiny", "--input", here / "text", "--to", here / "shards")
    done("export", GOLDEN / "bert", "hf", "--to", here / "model")
    at = f"{store.scheme}://{BUCKET}/silent-{random.randrange(1 << 30)}"

    names = {"bert": "bert", "gpt": "gpt", "classify": "bert_classify", "tag": "elmo_tag"}
    folders = {here: "", **{GOLDEN / run: f"{name}/" for name, run in names.items()}}
    for folder, name in folders.items():
        for file in (each for each in folder.rglob("*") if each.is_file()):
            put(f"{at}/{name}{file.relative_to(folder)}", file.read_bytes())
    for name, run in names.items():
        for step in (GOLDEN / run / "checkpoints").iterdir():
            put(f"{at}/{name}/checkpoints/{step.name}/commit_success.txt", b"x")
    return at


def put(path: str, value: bytes) -> None:
    address = parse_address(path)
    assert address is not None
    bucket.write(address, value)


@pytest.fixture
def words(place: str, store: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """A command's words, with a place of its own for what it writes."""
    monkeypatch.setenv("CONTEXTURE_LEASE_SECONDS", "8")

    def of(name: str) -> list[str]:
        new = f"{place}/new-{random.randrange(1 << 30)}"
        return [name, *WORDS[name].replace("@/", f"{place}/").replace("@new", new).split()]

    # As in a new process.
    bucket._silent.clear()
    yield of
    store.faults = Faults()
    bucket._left.clear()


def test_every_command_that_takes_a_path_is_here() -> None:
    assert WORDS.keys() == COMMANDS.keys() - WITHOUT


@pytest.mark.parametrize("name", WORDS)
def test_no_answer_at_all(words, store, capsys, monkeypatch, name) -> None:
    monkeypatch.setenv("CONTEXTURE_BUCKET_SECONDS", "0.3")
    store.faults = Faults(silent=True)
    start = time.monotonic()
    code, line = run_command(capsys, *words(name))
    assert code == 1 and re.fullmatch(rf"BucketError: {LINE}".format("0.3"), line), line
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("share", [0.8, *long(0.3, 0.6)])
@pytest.mark.parametrize("name", ["pretrain", *long(*(name for name in WORDS if name != "pretrain"))])
def test_no_answer_any_more(words, store, door, capsys, tmp_path, name, share) -> None:
    """After a share of the requests that the command has: while it reads, works, or writes."""
    store.counts.clear()
    assert run_command(capsys, *words(name))[0] == (2 if name in REFUSED else 0)
    store.faults = Faults(answers=int(share * store.asked))
    process = door(*words(name), wait=False, env={"CONTEXTURE_BUCKET_SECONDS": "2", "TMPDIR": str(tmp_path)})
    while not store.faults.silent and process.poll() is None:
        time.sleep(0.05)
    # Several limits at most: a training has a lease to give back, too.
    code, err, out = ended(process, 20)
    assert code == 1 and "Traceback" not in err and not list(tmp_path.glob("contexture-mirror-*")), err
    # It may say so in its table, whose lines are broken.
    last = " ".join(f"{out} {err}".split()) if name == "check" else err.splitlines()[-1]
    assert re.search(LINE.format("2"), last), (out, err)


def ended(process: subprocess.Popen, seconds: float) -> tuple[int, str, str]:
    """(exit code, stderr, stdout) of a process that ends by itself within a time."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, err, out


@pytest.mark.long
def test_both_processes_of_a_job_end(words, store, door, monkeypatch) -> None:
    """Whichever of them finds that nothing is answered in a save."""
    port, job = free_port(), [*words("pretrain"), "--mesh.peer-minutes", "0.25", "--mesh.startup-minutes", "1"]
    job[job.index("--steps") + 1] = "400"
    at = job.index("--dir")
    folder = job.pop(at + 1)
    del job[at]
    monkeypatch.setenv("CONTEXTURE_BUCKET_SECONDS", "2")
    processes = [start_process(door, job, folder, port, number, 2, devices=1) for number in range(2)]
    wait_until(lambda: any(name.endswith("/2/commit_success.txt") for name in store.names("silent")), processes)
    store.faults = Faults(silent=True)
    for code, err, _ in [ended(process, 45) for process in processes]:
        assert code == 1 and "Traceback" not in err and re.search(LINE.format("2"), err), err
