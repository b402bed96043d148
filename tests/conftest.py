"""Tests run on a CPU with 8 fake devices; compiled programs are kept between runs."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the project; tests that want it are skipped where it is absent."""
    if not (SHARED / "data").is_dir():
        pytest.skip("needs the folder of real data, ../shared, beside the project")
    return SHARED


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus with structure: 60 documents whose sentences have a subject that the document keeps."""
    import random

    rng = random.Random(1)
    folder = tmp_path_factory.mktemp("text")
    subjects = ["the cat", "a small dog", "one old man", "the queen", "my brother", "that bird"]
    verbs = ["sees", "likes", "follows", "finds", "remembers", "paints"]
    objects = ["the river", "a red house", "two apples", "the long road", "his letter", "many stars", "the sea"]
    places = ["in spring", "at night", "near the town", "with care", "again and again", "without a word"]
    for number in range(2):
        documents = []
        for _ in range(30):
            subject = rng.choice(subjects)
            lines = [
                " ".join(
                    f"{subject} {rng.choice(verbs)} {rng.choice(objects)} {rng.choice(places)}."
                    for _ in range(rng.randint(1, 4))
                )
                for _ in range(rng.randint(2, 8))
            ]
            documents.append("\n".join(line.capitalize() for line in lines))
        (folder / f"text{number}.txt").write_text("\n\n".join(documents) + "\n", "utf-8")
    return folder


TINY = (
    "--model.layers 2 --model.hidden 32 --model.heads 2 --model.ffn 64 --model.vocab 150 --data.length 32 "
    "--data.predictions 5 --data.batch 16 --optim.warmup 5 --save.every 10 --log.every 5 --steps 40"
).split()


@pytest.fixture(scope="session")
def door():
    """The command line as a user has it: `door("pretrain", "bert.tiny", …)` → the finished process."""
    import subprocess
    import sys

    def run(*words: object, devices: int = 1, wait: bool = True, env: dict[str, str] | None = None):
        environment = {
            **os.environ,
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            **(env or {}),
        }
        command = [sys.executable, str(ROOT / "contexture.py"), *map(str, words)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
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
def tiny_run(door, tiny_words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run, done without interruption."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = door(*tiny_words, "--dir", folder)
    assert done.returncode == 0, done.stderr
    return folder
