"""The kernels compile for TPUs and GPUs ahead of time, on a machine without either."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

DEVICES = [("tpu", "v4:2x2x1"), ("tpu", "v5e:2x2"), ("tpu", "v5p:2x2x1"), ("tpu", "v6e:2x2"), ("gpu", "h200:4")]
COMPILERS = {"tpu": "libtpu", "gpu": "jax_plugins.xla_cuda13"}


def installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.long
@pytest.mark.parametrize(("platform", "name"), DEVICES)
def test_kernels_compile_without_an_array_of_all_weights(platform: str, name: str):
    """Forward and backward, under dropout and every kind of mask, with the heads on two devices."""
    if not installed(COMPILERS[platform]):
        pytest.skip(f"needs the compiler for {name}: pip install '.[plan-{platform}]'")
    lengths = ["512", "1024", "2048", "8192", "65536"]
    command = [sys.executable, "-m", "tests.helpers.compile.attention", platform, name, *lengths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    programs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(programs) == 20
    for program in programs:
        assert not program["square"], program
        # Beside the arguments: them in another order, and two numbers for each query and head.
        assert program["temporary"] <= 2 * program["arguments"], program
