"""One run, whatever it runs on: devices, microbatches and processes change no number."""

import dataclasses
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from contexture.data.batches import Batches
from contexture.data.config import DataConfig, TaskConfig
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.text.sources import expand, texts
from contexture.data.tokenizers.registry import learn
from contexture.models.config import BertConfig, ElmoConfig, GptConfig
from contexture.models.shapes import by_path
from contexture.train import mesh as meshes
from contexture.train.checkpoints.transfer import model_of
from contexture.train.errors import ConfigError
from contexture.train.objectives import batch_fields, objective_of
from contexture.train.programs import step_settings
from contexture.train.run.report import read_metrics
from contexture.train.settings.run import Run
from contexture.train.settings.sections import MeshConfig, OptimConfig
from contexture.train.setup import open_batches
from contexture.train.step import State, create, train_step
from tests.helpers.jobs import finish, free_port, start_job
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close
from tests.helpers.random_runs import drawn

STEPS = 20


BERT = Run(
    model=BertConfig(vocab=152, length=32, layers=2, hidden=32, heads=2, ffn=64),
    data=DataConfig(batch=32, length=32, max_predictions=5),
    optim=OptimConfig(peak_lr=1e-3, warmup=5),
    steps=STEPS,
)
GPT = Run(
    model=GptConfig(vocab=302, length=32, layers=2, hidden=32, heads=2, ffn=64, local_window=8),
    data=DataConfig(batch=32, length=32, vocabulary="byte-bpe", packed=True),
    optim=OptimConfig(peak_lr=1e-3, warmup=5),
    steps=STEPS,
)
ELMO = Run(
    model=ElmoConfig(vocab=60, char_width=4, filters=((1, 4), (2, 4)), highway=1, layers=1, cells=16, projection=8),
    data=DataConfig(
        batch=32, length=8, vocabulary="words", word_types=64, negatives=16,
        word_splitter="punctuation",
    ),
    optim=OptimConfig(peak_lr=1e-3, warmup=5),
    steps=STEPS,
)  # fmt: skip


@pytest.fixture(scope="module", params=[*long("bert"), "gpt"])
def run(request: pytest.FixtureRequest, text_folder: Path) -> Run:
    return on_text(BERT if request.param == "bert" else GPT, text_folder)


@pytest.fixture(scope="module")
def batches(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Batches:
    return batches_of(run, tmp_path_factory.mktemp("mesh") / "shards")


def on_text(run: Run, text_folder: Path) -> Run:
    return dataclasses.replace(run, data=dataclasses.replace(run.data, path=(str(text_folder),)))


def batches_of(run: Run, folder: Path) -> Batches:
    data = run.data
    vocabulary = learn(data.vocabulary, texts(expand(data.path)), run.model.vocab - 2, True, data.word_splitter)
    return open_batches(run, prepare(data, vocabulary, folder, stream=run.stream), vocabulary)


def losses_on(
    run: Run,
    batches: Batches,
    shape: tuple[int, int, int],
    accumulate: int,
    labels: tuple[str, ...] = (),
    initial: State | Callable[[State], State] | None = None,
    numbers: range = range(STEPS),
) -> tuple[np.ndarray, Any, Mesh]:
    """(20 losses, the final state, the mesh), from a state given, or made of its shapes, or drawn on the mesh."""
    run = dataclasses.replace(run, optim=dataclasses.replace(run.optim, accumulate=accumulate))
    config = MeshConfig(data=shape[0], fsdp=shape[1], tensor=shape[2])
    mesh = meshes.build(config, jax.devices()[: int(np.prod(shape))])
    objective = objective_of(run)
    model = model_of(run, labels)
    with jax.set_mesh(mesh):
        draw, shapes, shardings = create(model, run, mesh)
        step = train_step(model, objective, run, mesh)
        initial = initial(shapes) if callable(initial) else initial
        state, losses = draw(run.seed) if initial is None else jax.device_put(initial, shardings), []
        for number in numbers:
            batch = meshes.shard_batch(mesh, batches.read(number), batches.fields, run.data.batch)
            state, metrics = step(state, batch, step_settings(run))
            losses.append(metrics["loss"])
        return np.array(jax.device_get(losses)), state, mesh


@pytest.fixture(scope="module")
def one_device(run: Run, batches: Batches):
    return losses_on(run, batches, (1, 1, 1), 1)


@pytest.mark.parametrize(
    ("shape", "accumulate"),
    [
        *long(
            ((1, 1, 1), 4),
            ((2, 2, 2), 1),
            ((2, 2, 2), 4),
            ((8, 1, 1), 1),
            ((8, 1, 1), 4),
        ),
    ],
)
def test_the_losses_of_a_mesh_are_those_of_one_device(run, batches, one_device, shape, accumulate):
    losses, state, mesh = losses_on(run, batches, shape, accumulate)
    assert_close(losses, one_device[0], rtol=1e-5)
    assert losses[-1] < losses[0]
    if shape == (2, 2, 2):
        assert_in_quarters(state)


def assert_in_quarters(state: State) -> None:
    """Of eight devices each holds a quarter of a kernel and of its moments."""
    params: Any = state.params
    moments: Any = state.opt
    for tree in (params, moments[1].mu, moments[1].nu):
        for array in (tree["backbone"]["layers"]["ffn"][name]["kernel"] for name in ("in", "out")):
            assert len(array.addressable_shards) == 8
            assert {4 * shard.data.nbytes for shard in array.addressable_shards} == {array.nbytes}


class MadeUpBatches:
    """Of a GPT: words at random, in windows of two documents; the second half of some lines has no weight."""

    def __init__(self, run: Run) -> None:
        self.run, self.fields = run, batch_fields(run)

    def read(self, number: int) -> dict[str, np.ndarray]:
        B, L, rng = self.run.data.batch, self.run.data.length, np.random.default_rng(number)
        words, weights = rng.integers(0, self.run.model.vocab, (B, L + 1), np.int32), np.ones((B, L), np.float32)
        weights[::3, L // 2 :] = 0.0
        packs = np.repeat(np.array([1, 2], np.int32), L // 2)
        lines = {
            "packs": packs,
            "positions": np.tile(np.arange(L // 2, dtype=np.int32), 2),
            "mask": np.ones(L, np.int32),
        }
        return {"tokens": words[:, :-1], "next": words[:, 1:], "next_weights": weights, "valid": np.ones(B, np.float32),
                **{name: np.tile(line, (B, 1)) for name, line in lines.items()}}  # fmt: skip


def test_steps_in_parts_on_a_mesh_are_those_of_one_device():
    """From one state, under dropout; a part counts by its share of the weight."""
    run, batches = GPT, cast(Any, MadeUpBatches(GPT))
    assert isinstance(run.model, GptConfig) and run.model.dropout > 0
    expected, one, _ = losses_on(run, batches, (1, 1, 1), 1, initial=drawn, numbers=range(4))
    losses, state, _ = losses_on(run, batches, (2, 2, 2), 4, initial=drawn, numbers=range(4))
    assert_close(losses, expected, rtol=1e-5)
    assert_in_quarters(state)
    table = "backbone/embeddings/tokens"
    assert_close(by_path(state.params)[table], by_path(one.params)[table], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", long(((2, 2, 2),), ((1, 1, 1),)))
def test_a_run_goes_on_with_another_attention(run, batches, one_device, shape):
    """Ten steps with arrays of weights, and ten with the kernel that stores none, under dropout: the same losses."""
    half = STEPS // 2
    _, state, _ = losses_on(run, batches, (1, 1, 1), 1, numbers=range(half))
    kernel = dataclasses.replace(run, model=dataclasses.replace(run.model, attention="pallas"))
    losses, _, _ = losses_on(kernel, batches, shape, 1, initial=jax.device_get(state), numbers=range(half, STEPS))
    assert_close(losses, one_device[0][half:], rtol=1e-5)


@pytest.fixture(scope="module")
def elmo(text_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """(the run, its batches, the state that it begins with, the 20 losses of one device, the final state)."""
    run = on_text(ELMO, text_folder)
    batches = batches_of(run, tmp_path_factory.mktemp("mesh") / "shards")
    mesh = meshes.build(MeshConfig(), jax.devices()[:1])
    with jax.set_mesh(mesh):
        initial = jax.device_get(create(model_of(run, ()), run, mesh)[0](run.seed))
    losses, state, _ = losses_on(run, batches, (1, 1, 1), 1, initial=initial)
    return run, batches, initial, losses, jax.device_get(state)


@pytest.mark.parametrize(
    ("shape", "accumulate"),
    [
        *long(
            ((2, 2, 2), 4),
            ((2, 2, 2), 1),
            ((8, 1, 1), 1),
            ((8, 1, 1), 4),
            ((1, 1, 1), 4),
        ),
    ],
)
def test_an_elmos_losses_and_carry_are_those_of_one_device(elmo, shape, accumulate):
    run, batches, initial, expected, whole = elmo
    losses, state, _ = losses_on(run, batches, shape, accumulate, initial=initial)
    assert_close(losses, expected, rtol=1e-5)
    assert losses[-1] < losses[0]
    for got, one in zip(jax.tree.leaves(state.carry), jax.tree.leaves(whole.carry), strict=True):
        assert_close(got, one, rtol=0, atol=1e-4)
    for name in ("forward", "backward"):
        stack, carry = state.params["backbone"]["layers"][name], state.carry["backbone"]["layers"][name]
        if shape == (2, 2, 2):
            assert [len(set(map(str, x.sharding.devices_indices_map(x.shape).values()))) for x in
                    (stack["kernel"], stack["projection"], carry["cell"], carry["hidden"])] == [4, 4, 8, 4]  # fmt: skip
        for x in carry.values():
            assert {shard.data.shape[0] * shape[0] * shape[1] for shard in x.addressable_shards} == {32}


def test_an_elmos_step_in_parts_on_a_mesh_is_the_whole_step(text_folder, tmp_path):
    """Its table of distinct words belongs to the whole batch, and is the same in every part."""
    run = on_text(ELMO, text_folder)
    batches = batches_of(run, tmp_path / "shards")
    whole, one, _ = losses_on(run, batches, (1, 1, 1), 1, initial=drawn, numbers=range(2))
    losses, state, _ = losses_on(run, batches, (2, 2, 2), 4, initial=drawn, numbers=range(2))
    assert_close(losses, whole, rtol=1e-5)
    for got, expected in zip(jax.tree.leaves(state.carry), jax.tree.leaves(one.carry), strict=True):
        assert_close(got, expected, rtol=0, atol=1e-4)


@pytest.mark.long
def test_a_tasks_losses_are_the_same_on_a_mesh_in_parts(run, batches, task_files, tmp_path):
    """Weights of classes, and words of unequal number in the parts: a part counts by its share of the weight; with
    GPT, the words' own loss beside it."""
    task = TaskConfig(kind="tag", train=(str(task_files / "tag.train.conllu"),), class_weights=("VERB=3", "DET=0.5"))
    tokenizer = batches.tokenizer
    if run.family == "gpt":
        task, tokenizer = dataclasses.replace(task, lm_weight=0.5), run.text.with_task_tokens(tokenizer)
        run = dataclasses.replace(run, model=dataclasses.replace(run.model, vocab=tokenizer.size))
    store = encode(task, tokenizer, tmp_path / "data")
    tagging = dataclasses.replace(run, task=task, data=dataclasses.replace(run.data, packed=False))
    in_parts = dataclasses.replace(tagging, optim=dataclasses.replace(tagging.optim, accumulate=4))
    examples = open_batches(in_parts, store, tokenizer, devices=4)
    one, _, _ = losses_on(tagging, examples, (1, 1, 1), 1, store.labels)
    count, _, _ = losses_on(tagging, examples, (2, 2, 2), 4, store.labels)
    assert_close(count, one, rtol=1e-5)
    assert one[-1] < one[0]


@pytest.mark.long
def test_groups_of_devices_train_as_one_device_does(door, tiny_words, tiny_run, tmp_path):
    """Sixteen devices in two groups, as two slices have it."""
    words = ["--mesh.dcn-data", "2", "--mesh.fsdp", "2", "--mesh.tensor", "2"]
    done = door(*tiny_words, *words, "--dir", tmp_path / "run", devices=16)
    assert done.returncode == 0, done.stderr
    assert "16 cpu devices as data 4 × fsdp 2 × tensor 2" in done.stderr
    assert_close(losses(tmp_path / "run"), losses(tiny_run), rtol=1e-5)


def test_a_mesh_that_does_not_fit_is_one_clear_line():
    with pytest.raises(ConfigError, match=r"3 × 2 × 1 = 6 does not fit 8 devices"):
        meshes.build(MeshConfig(data=3, fsdp=2))
    with pytest.raises(ConfigError, match=r"data.batch=12 is not a multiple of .* = 2 × 8 × 1 = 16"):
        meshes.check_batch(meshes.build(MeshConfig()), 12, 2, "data.batch")


def start_two(door, words: list[str], folder: Path) -> list[subprocess.Popen]:
    """Two processes of four devices each, one job."""
    return start_job(door, [*words, "--mesh.fsdp", "2", "--mesh.tensor", "2"], [folder, folder], free_port())


def losses(folder: Path) -> np.ndarray:
    return np.array([r["loss"] for r in read_metrics(folder / "metrics.jsonl") if r["split"] == "train"])


@pytest.mark.long
@pytest.mark.parametrize("family", ["tiny", "gpt", "elmo"])
def test_two_processes_are_one_run_and_go_on_as_one_process(door, family, tmp_path, request):
    """Two processes of four devices, stopped by a SIGTERM to one of them; gone on with by one process on one device,
    and, from the same checkpoint, by two processes again, each of which reads its own lines only."""
    words = [*request.getfixturevalue(f"{family}_words"), "--steps", "20", "--save.every", "4", "--log.every", "4"]
    done = door(*words, "--dir", tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    whole = losses(tmp_path / "whole")
    folder = tmp_path / "two"
    processes = start_two(door, words, folder)
    metrics = folder / "metrics.jsonl"
    while all(r["step"] < 4 for r in read_metrics(metrics)) and processes[0].poll() is None:
        time.sleep(0.05)
    processes[1].terminate()
    first = finish(processes)
    assert [code for code, _ in first] == [75, 75], first
    saved = int(re.findall(r"saved step (\d+)", first[0][1])[0])
    assert 4 <= saved < 20
    assert_close(losses(folder), whole[:saved], rtol=1e-5)
    shutil.copytree(folder, tmp_path / "one")

    done = door(*words, "--dir", tmp_path / "one")
    assert done.returncode == 0 and f"resuming from step {saved}" in done.stderr, done.stderr
    assert_close(losses(tmp_path / "one"), whole, rtol=1e-5)

    again = finish(start_two(door, words, folder))
    assert [code for code, _ in again] == [0, 0], again
    assert_close(losses(folder), whole, rtol=1e-5)
    lines = 16 * (20 - saved)
    for number, (_, stderr) in enumerate(again):
        assert f"process {number} of 2 read {lines // 2} of {lines} sequences" in stderr


@pytest.mark.long
@pytest.mark.parametrize("more", [["--optim.accumulate", "4"], ["--optim.accumulate", "2", "--data.packed"]], ids=str)
def test_two_processes_in_parts_are_one_run(door, tiny_words, tmp_path, more):
    """Accumulation changes no loss across processes either, nor do rows that sequences share: 20 steps against one
    process, one device, one part."""
    words = [*tiny_words, "--steps", "20"]
    assert door(*words, "--dir", tmp_path / "whole").returncode == 0
    done = finish(start_two(door, [*words, *more], tmp_path / "two"))
    assert [code for code, _ in done] == [0, 0], done
    assert_close(losses(tmp_path / "two"), losses(tmp_path / "whole"), rtol=1e-5)
    for number, (_, stderr) in enumerate(done):
        assert f"process {number} of 2 read 160 of 320 sequences" in stderr


@pytest.mark.long
def test_a_mistake_ends_both_processes_at_once_in_one_line(door, tiny_words, tmp_path):
    text = tiny_words[tiny_words.index("--data.path") + 1]
    words = [word if word != text else "/nowhere" for word in tiny_words]
    for code, stderr in finish(start_two(door, words, tmp_path / "run")):
        assert code == 2 and "/nowhere: data.path names no such file" in stderr and "Traceback" not in stderr, stderr
