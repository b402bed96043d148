"""Tests run on a CPU with 8 fake devices; compiled programs are kept between runs.

The quick suite has XLA leave its programs as they come, which compiles them in a third of the time; the long suite and
parity compile them as users do.
"""

import contextlib
import ctypes
import fcntl
import gc
import os
import signal
import subprocess
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

ROOT = Path(__file__).parents[1]
os.environ["JAX_PLATFORMS"] = "cpu"
# Run in parallel, as they are by default, independent collectives of many fake devices on few cores can wait for each
# other for ever: XLA ends the process after 40 seconds. Those of several processes wait for ever if run in this order.
IN_ORDER = " --xla_cpu_enable_concurrency_optimized_scheduler=false"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=8{IN_ORDER}"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from tests.helpers.buckets import Server, bucket_server  # noqa: E402
from tests.helpers.commands import devices  # noqa: E402
from tests.helpers.long import long  # noqa: E402
from tests.helpers.small_text import SUFFIX, write_tasks, write_text  # noqa: E402
from tests.processor_time import ProcessorTime  # noqa: E402

if TYPE_CHECKING:
    from tests.interchange.hub_server import Hub

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

settings.register_profile("no deadline", settings(), deadline=None)  # an example may be the one that compiles
settings.load_profile("no deadline")


SHARED = ROOT.parent / "shared"
# Without expensive passes, and without the fusion emitters of MLIR, which take half of the time.
QUICKLY_COMPILED = (
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1"
)
QUICK_EXAMPLES = 15
MOST_MEMORY = 1 << 31
"""Bytes of a process of the suite, beyond which its compiled programs are dropped between two files."""
MOST_PROGRAMS = 128
"""So many functions are kept with their programs: a file of tests has many small runs."""


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.option.markexpr
    if "not long" in chosen:
        os.environ["XLA_FLAGS"] += QUICKLY_COMPILED
    elif chosen == "long" and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        # In this process alone, which reads its flags once: commands in processes of their own are as users have them.
        flags = os.environ["XLA_FLAGS"]
        os.environ["XLA_FLAGS"] += QUICKLY_COMPILED
        jax.devices()
        os.environ["XLA_FLAGS"] = flags
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as behind a shell's `&`; commands inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(ProcessorTime(), "processor time")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", metavar="K/N", help="run part K of the tests that are chosen, of N parts (K from 0), by their names"
    )
    parser.addoption("--budget", action="store_true", help="fail where a file takes more processor time than it may")


def pytest_collection_finish() -> None:
    """What is imported by now stays: garbage is looked for in what tests make, and seldom: 8 % less time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _examples(config.option.markexpr, items)
    given: str | None = config.getoption("part")
    if given is None:
        return
    part, parts = map(int, given.split("/"))
    in_part = [zlib.crc32(item.nodeid.encode()) % parts == part for item in items]
    config.hook.pytest_deselected(items=[item for item, kept in zip(items, in_part, strict=True) if not kept])
    items[:] = [item for item, kept in zip(items, in_part, strict=True) if kept]


def _examples(chosen: str, items: list[pytest.Item]) -> None:
    """Gives the tests of hypothesis few examples in the quick suite; the long one runs them too, with all of theirs."""
    from hypothesis import is_hypothesis_test

    for item in items:
        function: Any = getattr(item, "obj", None)
        if not is_hypothesis_test(function):
            continue
        if chosen == "long":
            item.add_marker("long")
        elif "not long" in chosen:
            own = function._hypothesis_internal_use_settings
            few = min(own.max_examples, QUICK_EXAMPLES)
            function._hypothesis_internal_use_settings = settings(own, max_examples=few)


@pytest.fixture(scope="session")
def environment() -> Callable[[int], dict[str, str]]:
    """What a process of ours, with so many devices, finds around it."""

    def around(devices: int) -> dict[str, str]:
        flags = os.environ["XLA_FLAGS"].replace("count=8", f"count={devices}")
        if devices > 1:
            flags = flags.replace(IN_ORDER, "")
        return {**os.environ, "XLA_FLAGS": flags, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

    return around


@pytest.fixture(scope="module", autouse=True)
def no_loss_figure(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs of this process draw no curves at their end, which takes a tenth of a small run, but in their own tests."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name != "test_plots.py":
            patch.setattr("contexture.train.run.plots.LiveLossFigure.draw", lambda figure: figure.close())
        yield


@pytest.fixture(scope="session", autouse=True)
def drawn_first_states(pytestconfig: pytest.Config) -> Iterator[None]:
    """Trainings of the quick suite in this process begin with numbers that NumPy draws by their seed: the program that
    draws a run's own is compiled for three seconds, and has laws of its own."""
    from tests.helpers.random_runs import first_states

    with first_states() if "not long" in pytestconfig.option.markexpr else contextlib.nullcontext():
        yield


@pytest.fixture(scope="module", autouse=True)
def programs_are_dropped() -> Iterator[None]:
    """Compiled programs of many files take gigabytes; the next files find those that they need in the cache on disk."""
    from contexture.train import programs

    yield
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    if pages * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
        programs.forget()
        jax.clear_caches()
        gc.collect()
        # The C library keeps what was freed: the process would stay as large, and each later file drop all again.
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="session", autouse=True)
def programs_are_kept() -> None:
    from contexture.train import programs

    programs.MOST = MOST_PROGRAMS


@pytest.fixture
def own_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled before, and nothing is kept: for tests that count compilations, or compile in an odd way."""
    from contexture.train import programs

    monkeypatch.setattr(programs, "_kept", OrderedDict())


@pytest.fixture(scope="module")
def optimized_steps(pytestconfig: pytest.Config) -> Iterator[None]:
    """In the long suite the steps of this module are compiled as users have them, and not quickly."""
    from contexture.train import programs, step
    from tests.helpers.optimized import OPTIMIZED

    class Jax:
        def __getattr__(self, name: str) -> Any:
            return getattr(jax, name)

        def jit(self, function: Any, **how: Any) -> Any:
            return jax.jit(function, **{**how, "compiler_options": how.get("compiler_options") or OPTIMIZED})

    with pytest.MonkeyPatch.context() as patch:
        if pytestconfig.option.markexpr == "long":
            patch.setattr(step, "jax", Jax())
            patch.setattr(programs, "_kept", OrderedDict())
        yield


@pytest.fixture(scope="module")
def one_device():
    """The commands of this module, called in this process, see one device: eight are compiled for at twice the time."""
    with devices(1):
        yield


@pytest.fixture
def start_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training in this process ends with code 130 where its steps would begin: what a start does is done then."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("contexture.train.loop._run_steps", interrupt)


@pytest.fixture(params=[130, *long(0)])
def start_or_run(request: pytest.FixtureRequest) -> int:
    """The code that a training in this process ends with: 130, as `start_only`, and in the long suite 0, trained."""
    if request.param:
        request.getfixturevalue("start_only")
    return request.param


@pytest.fixture(scope="session")
def once(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Callable[[str, Callable[[Path], None]], Path]:
    """A folder that many tests read: `once("whole", make)` → the folder, made by `make(folder)`. Where tests run in
    several processes, the first that wants it makes it and the others wait."""
    base = tmp_path_factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
    time_of = cast(ProcessorTime, pytestconfig.pluginmanager.get_plugin("processor time"))

    def made(name: str, make: Callable[[Path], None]) -> Path:
        folder = base / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        done = folder.with_name(f"{folder.name}.done")
        with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                with time_of.shared(f"once: {name}"):
                    make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def trained_run(once, door) -> Callable[[str, list[str]], Path]:
    """A run done without interruption: `trained_run("whole", words)`, the words of its command without --dir."""

    def run(name: str, words: list[str]) -> Path:
        def make(folder: Path) -> None:
            done = door(*words, "--dir", folder)
            assert done.returncode == 0, done.stderr

        return once(f"runs/{name}", make)

    return run


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the project; tests that want it are skipped where it is absent."""
    if not (SHARED / "data").is_dir():
        pytest.skip("needs the folder of real data, ../shared, beside the project")
    return SHARED


@pytest.fixture(scope="session")
def text_folder(once) -> Path:
    """A small corpus with structure: 60 documents whose sentences have a subject that the document keeps."""
    return once("text", write_text)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A file system of its own: `small_disk("size=1m")` mounts it, `small_disk("remount,size=9m")` changes it."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"needs leave to mount a small file system: {done.stderr.strip()}")
        return place

    yield mount
    subprocess.run(["umount", "-l", place], capture_output=True)


TINY = (
    "--model.layers 2 --model.hidden 32 --model.heads 2 --model.ffn 64 --model.vocab 150 --data.length 32 "
    "--data.max-predictions 5 --data.batch 16 --optim.warmup 5 --save.every 10 --log.every 5 --steps 40"
).split()


@pytest.fixture(scope="session")
def door(environment):
    """The command line as a user has it: `door("pretrain", "bert.tiny", …)` → the finished process."""
    import sys

    def run(*words: object, devices: int = 1, wait: bool = True, env: dict[str, str] | None = None):
        around = {**environment(devices), **(env or {})}
        command = [sys.executable, "-m", "contexture", *map(str, words)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=around, cwd=ROOT
        )
        if not wait:
            return process
        try:
            out, err = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def tiny_words(text_folder: Path) -> list[str]:
    """The words of a small run without its --dir: 40 steps, a checkpoint every 10."""
    return ["pretrain", "bert.tiny", "--data.path", str(text_folder), "--data.dev-fraction", "0.2", *TINY]


@pytest.fixture(scope="session")
def tiny_run(pytestconfig: pytest.Config, once, trained_run, tiny_words: list[str]) -> Path:
    """That run, done without interruption; in the quick suite its weights are drawn at random."""
    if "not long" not in pytestconfig.option.markexpr:
        return trained_run("whole", tiny_words)
    from tests.helpers.random_runs import random_bert

    return random_bert(once, tiny_words)


@pytest.fixture(scope="session")
def gpt_words(text_folder: Path) -> list[str]:
    """The words of a small GPT's run without its --dir: 40 steps, a checkpoint every 10; byte-level pieces, packed."""
    at = TINY.index("--data.max-predictions")
    words = TINY[:at] + TINY[at + 2 :]
    words[words.index("150")] = "300"
    more = ["--data.documents", "blank_lines", "--data.packed"]
    return ["pretrain", "gpt.tiny", "--data.path", str(text_folder), "--data.dev-fraction", "0.2", *words, *more]


@pytest.fixture(scope="session")
def gpt_run(trained_run, gpt_words: list[str]) -> Path:
    """That run, done without interruption."""
    return trained_run("gpt", gpt_words)


@pytest.fixture(scope="session")
def elmo_words(text_folder: Path) -> list[str]:
    """The words of a small ELMo's run without its --dir: 40 steps, a checkpoint every 10; 49 words, 16 negatives."""
    small = (
        "--model.vocab 60 --model.filters 1 4 2 4 --model.cells 16 --model.projection 6 --data.length 8 "
        "--data.batch 16 --data.negatives 16 --data.word-types 64 --optim.warmup 5 --save.every 10 --log.every 5 "
        "--steps 40"
    ).split()
    return ["pretrain", "elmo.tiny", "--data.path", str(text_folder), "--data.dev-fraction", "0.2", *small]


@pytest.fixture(scope="session")
def elmo_run(trained_run, elmo_words: list[str]) -> Path:
    """That run, done without interruption."""
    return trained_run("elmo", elmo_words)


@pytest.fixture(scope="session")
def published_elmo(shared: Path, once) -> Path:
    """The original's own small biLM, imported: a run at step 0, of three words."""
    from contexture.interchange.convert import import_model

    golden = shared / "data" / "golden_bilm_tf" / "model"

    def made(folder: Path) -> None:
        import_model("bilm", golden, folder)

    return once("published_elmo", made)


@pytest.fixture(scope="session")
def task_files(once) -> Path:
    """Labelled files in the words of the small corpus: train and dev of each kind. 97 examples are held out (a prime).

    classify.*.tsv (text, label: who is spoken of), pairs.*.csv (first, second, label: is it the same one),
    regress.*.jsonl (text, score: how many words), tag.*.conllu (upos).
    """
    return once("tasks", write_tasks)


@pytest.fixture(scope="session")
def task_words(tiny_run: Path, task_files: Path):
    """The words of a small fine-tuning without its --dir, of a kind of file: 60 steps, a checkpoint every 10."""

    def words(kind: str = "classify") -> list[str]:
        files = [f"{task_files / kind}.{split}.{SUFFIX[kind]}" for split in ("train", "dev")]
        return [
            *("finetune", str(tiny_run), "--task.kind", "classify" if kind == "pairs" else kind),
            *("--task.train", files[0], "--task.dev", files[1], "--data.batch", "16", "--optim.peak-lr", "5e-3"),
            *("--optim.name", "adamw", "--optim.schedule", "linear", "--model.dropout", "0"),
            *("--model.attention-dropout", "0", "--save.every", "10", "--log.every", "5", "--steps", "60"),
        ]

    return words


@pytest.fixture(scope="session")
def task_run(trained_run, task_words):
    """That fine-tuning, done without interruption, of a kind: `task_run("tag")` → its folder. Each is done once."""
    return lambda kind="classify": trained_run(f"tasks/{kind}", task_words(kind))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["Hub"]:
    """A Hugging Face hub on this machine, for a test in a folder of its own."""
    from contexture.data.text import hub as files_of_hub
    from tests.interchange.hub_server import Hub, hub_server, use_hub

    hub = Hub()
    monkeypatch.chdir(tmp_path)
    files_of_hub._download.cache_clear()
    with hub_server(hub) as address:
        use_hub(monkeypatch, address, tmp_path / "cache")
        yield hub


@pytest.fixture(scope="session")
def gs_store() -> Iterator[Server]:
    """A server of gs:// buckets, which this process and those that it starts find by their environment."""
    # For the whole session: TensorStore reads its address once.
    with bucket_server("gs") as server, pytest.MonkeyPatch.context() as patch:
        for name, value in {**server.environment, "NO_GCE_CHECK": "true"}.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="session")
def s3_store() -> Iterator[Server]:
    """The same of s3:// buckets."""
    with bucket_server("s3") as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(params=["gs", *long("s3")])
def bucket_store(request: pytest.FixtureRequest) -> Server:
    """Each of the two servers; the quick suite asks s3 in a law of its own."""
    return request.getfixturevalue(f"{request.param}_store")
