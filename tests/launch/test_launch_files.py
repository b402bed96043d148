"""The files of launch/: their command trains, exit code 75 starts it again, and those who read them accept them."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from contexture.cli import main as cli
from contexture.train.run.signals import Interrupted
from contexture.train.settings.run import Run
from tests.conftest import ROOT
from tests.helpers.buckets import BUCKET

LAUNCH = ROOT / "launch"
FILES = sorted(LAUNCH.iterdir())
SKY = sorted(LAUNCH.glob("skypilot-*.yaml"))
JOBSETS = sorted(LAUNCH.glob("jobset-*.yaml"))
TOOLS = ROOT / ".venv-launch" / "bin" / "python"
"""An interpreter with SkyPilot and kubernetes-validate, whose requirements are not those of the lock."""
MADE = "python3 -m venv .venv-launch && .venv-launch/bin/pip install skypilot kubernetes-validate"
wants_tools = pytest.mark.skipif(not TOOLS.exists(), reason=f"needs an environment of its own: {MADE}")


def _yaml(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text("utf-8"))


def _job(file: Path) -> dict[str, Any]:
    """The Job within a JobSet."""
    (workers,) = _yaml(file)["spec"]["replicatedJobs"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": workers["name"]}, **workers["template"]}


def _pod(file: Path) -> dict[str, Any]:
    return _job(file)["spec"]["template"]["spec"]


def _command(file: Path) -> list[str]:
    """The words of the file's `contexture pretrain`, its variables replaced by their defaults."""
    if file in JOBSETS:
        (container,) = _pod(file)["containers"]
        words = [*container["command"], *container["args"]]
        values = {each["name"]: each.get("value", "") for each in container["env"]}
        return [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word) for word in words]
    text = _yaml(file)["run"] if file in SKY else file.read_text("utf-8")
    values = _yaml(file)["envs"] if file in SKY else dict(re.findall(r'^(\w+)="\$\{\1:-(.*)\}"', text, re.M))
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^\s*#.*", "", text, flags=re.M)).splitlines()
    (line,) = (line for line in lines if "contexture pretrain" in line)
    words = shlex.split(line.replace('"$@"', ""))
    words = [re.sub(r"\$(\w+)", lambda match: values[match[1]], word) for word in words]
    return words[words.index("contexture") :]


def test_there_is_a_file_for_every_way():
    names = ["jobset-gpu.yaml", "jobset-tpu.yaml", "skypilot-gpu.yaml", "skypilot-tpu.yaml", "slurm.sbatch"]
    assert [file.name for file in FILES] == names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_command_of_a_file_is_one_that_trains(monkeypatch, gs_store, file):
    given: list[Run] = []
    monkeypatch.setattr("contexture.train.loop.train", lambda run, *_: given.append(run) or sys.exit(0))
    program, *words = (word.replace("BUCKET", BUCKET) for word in _command(file))
    assert program == "contexture" and cli.main(words) == 0
    (run,) = given
    assert run.mesh.distributed and run.dir and run.data.path


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_begins_with_the_command_that_starts_it(file):
    lines = file.read_text("utf-8").removeprefix("#!/bin/bash\n").splitlines()
    assert re.match(rf"# (sbatch|sky jobs launch|kubectl apply) .*launch/{re.escape(file.name)}\b", lines[0])


@pytest.mark.parametrize("file", SKY, ids=lambda file: file.name)
def test_skypilot_starts_again_at_the_exit_code_of_a_saved_run(file):
    recovery = _yaml(file)["resources"]["job_recovery"]
    assert recovery["recover_on_exit_codes"] == [Interrupted(15, "").code] == [75]
    assert recovery.keys() == {"strategy", "recover_on_exit_codes"}, "SkyPilot lets a misspelt key pass"


@wants_tools
@pytest.mark.parametrize("file", SKY, ids=lambda file: file.name)
def test_skypilot_reads_its_files_so(tmp_path, file):
    """By SkyPilot itself, without a cloud and without an account."""
    code = (
        "import json, sys, sky; task = sky.Task.from_yaml(sys.argv[1]); (one,) = task.resources; "
        "print(json.dumps([task.num_nodes, one.accelerators, one.use_spot, one.job_recovery]))"
    )
    env = {**os.environ, "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run([TOOLS, "-c", code, file], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    nodes, accelerators, spot, recovery = json.loads(done.stdout.splitlines()[-1])
    assert (nodes, accelerators) == ((1, {"tpu-v5litepod-64": 1}) if "tpu" in file.name else (2, {"H100": 8}))
    assert spot and recovery["recover_on_exit_codes"] == [75]


@pytest.mark.parametrize("file", JOBSETS, ids=lambda file: file.name)
def test_a_jobset_starts_again_at_the_exit_code_of_a_saved_run(file):
    """The Job fails at once, for a reason that the JobSet starts again at without counting it."""
    spec = _job(file)["spec"]
    assert spec["backoffLimit"] == 0 and _pod(file)["restartPolicy"] == "Never"
    (container,) = _pod(file)["containers"]
    codes, taken = spec["podFailurePolicy"]["rules"]
    assert codes["action"] == taken["action"] == "FailJob"
    assert codes["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [75]}
    assert taken["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    (rule,) = _yaml(file)["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("RestartJobSetAndIgnoreMaxRestarts", ["PodFailurePolicy"])


@pytest.mark.parametrize("file", JOBSETS, ids=lambda file: file.name)
def test_the_pods_of_a_jobset_know_their_job(file):
    """The count is that of the pods, and the coordinator is the first pod of the job there is."""
    (container,) = _pod(file)["containers"]
    env = {each["name"]: each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]}
    spec, jobset = _job(file)["spec"], _yaml(file)["spec"]
    assert int(env["JAX_NUM_PROCESSES"]) == spec["completions"] == spec["parallelism"]
    assert env["JAX_PROCESS_ID"] == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert env["COORDINATOR"] == "metadata.annotations['jobset.sigs.k8s.io/coordinator']"
    (workers,) = jobset["replicatedJobs"]
    assert jobset["coordinator"] == {"replicatedJob": workers["name"], "jobIndex": 0, "podIndex": 0}
    names = [each["name"] for each in container["env"]]
    for name, value in env.items():  # Kubernetes replaces $(X) by a variable that comes before
        assert all(names.index(used) < names.index(name) for used in re.findall(r"\$\((\w+)\)", value)), name


@wants_tools
@pytest.mark.parametrize("file", JOBSETS, ids=lambda file: file.name)
def test_the_job_in_a_jobset_is_valid(file):
    code = "import json, sys, kubernetes_validate as k; k.validate(json.load(sys.stdin), '1.33', strict=True)"
    job = json.dumps(_job(file))
    done = subprocess.run([TOOLS, "-c", code], input=job, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
