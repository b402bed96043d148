"""What a launcher's variables say: the place of a process, the GPUs that stay idle, and where process 0 listens."""

from typing import Any

import pytest

from contexture.train.distributed import launchers
from contexture.train.distributed.launchers import Task, coordinator, detection, idle_gpus, task, visible_gpus
from tests.helpers.logs import logged

SLURM = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "node[03-04]", "SLURM_NTASKS": "2", "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}  # fmt: skip
MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_SIZE": "8",
}  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "node", "count"),
    [("1(x2)", 0, 1), ("8(x2),4", 1, 8), ("8(x2),4", 2, 4), ("3,1", 1, 1), ("2", 1, 0), ("", 0, 0)],
)
def test_slurm_says_how_many_tasks_a_node_has(counts: str, node: int, count: int):
    one = task({**SLURM, "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": str(node)})
    assert one == Task("SLURM", 0, 0, count)


def test_a_process_knows_its_place_by_its_launcher():
    assert task(MPI) == Task("Open MPI", 5, 1, 4)
    assert task({**SLURM, **MPI}) == task(MPI), "jax looks for Open MPI first"
    assert task({}) is None
    for name in ("SLURM_PROCID", "SLURM_STEP_NODELIST"):  # a shell within an allocation is no task
        assert task({key: value for key, value in SLURM.items() if key != name}) is None
    assert task({**SLURM, "SLURM_PROCID": "x"}) is None


@pytest.mark.parametrize(
    ("given", "gpus", "idle", "mend"),
    [
        ({}, 8, "7 GPUs (1,2,3,4,5,6,7) stay idle", "set JAX_LOCAL_DEVICE_IDS=0,1,2,3,4,5,6,7, or start a process"),
        ({}, 2, "1 GPU (1) stays idle", "set JAX_LOCAL_DEVICE_IDS=0,1, or start a process for each GPU (--ntasks-per-"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, 4, "2 GPUs (2,3) stay idle", "; start a process for each GPU (--ntasks-p"),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 8, "4 GPUs (4,5,6,7) stay idle", "each GPU (mpirun -N 8)"),
        ({"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2"}, 1, "it may use 1 GPU", "JAX_LOCAL_DEVICE_IDS=0, or"),
    ],
)
def test_idle_gpus_are_one_line_with_the_mend(given: dict[str, str], gpus: int, idle: str, mend: str):
    line = idle_gpus({**SLURM, **given}, gpus)
    assert idle in line and mend in line and "\n" not in line


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, 8),  # no launcher that jax asks for the number on the node
        (SLURM, 0),
        (SLURM, 1),
        ({**SLURM, "JAX_LOCAL_DEVICE_IDS": "0,1,2,3"}, 8),  # the user's own choice
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, 8),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, 1),  # a GPU bound to each
        (MPI, 4),
    ],
)
def test_there_is_no_line_where_every_gpu_has_its_process(environ: dict[str, str], gpus: int):
    assert not idle_gpus(environ, gpus)


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 3), ({"CUDA_VISIBLE_DEVICES": "0,2"}, 2), ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0), ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937,MIG-1"}, 2), ({"JAX_PLATFORMS": "cpu"}, 0),
        ({"JAX_PLATFORMS": "tpu"}, 0), ({"JAX_PLATFORMS": "cuda,cpu"}, 3),
    ],
)  # fmt: skip
def test_gpus_are_counted_without_jax(monkeypatch, tmp_path, environ: dict[str, str], count: int):
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.setattr(launchers, "_GPUS", f"{tmp_path}/nvidia[0-9]*")
    assert visible_gpus(environ) == count


def test_one_process_of_a_job_warns(monkeypatch):
    monkeypatch.setattr(launchers, "visible_gpus", lambda environ: 4)
    with logged() as lines:
        assert detection(SLURM) == {}
        assert detection({**SLURM, "SLURM_PROCID": "1", "SLURM_NODEID": "1"}) == {}
    assert len(lines) == 1 and lines[0].startswith("warning: under SLURM jax gives each process one GPU, and this node")


def test_a_pod_that_knows_its_job_does_not_ask_the_cluster():
    pod = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}
    assert detection({**pod, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == {"cluster_detection_method": "deactivate"}
    assert detection(pod) == detection({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == {}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_PROCESS_ID": "3"}, ("a:1", 3)),
        ({**SLURM, "SLURM_PROCID": "1"}, ("node03:61517", 1)),
        ({**SLURM, "JAX_COORDINATOR_PORT": "8476"}, ("node03:8476", 0)),
        ({**SLURM, "JAX_COORDINATOR_ADDRESS": "a:1"}, ("a:1", 0)),
    ],
)
def test_the_address_of_process_0_is_the_one_that_jax_takes(monkeypatch, environ: dict[str, str], found: Any):
    for name in ("JAX_COORDINATOR_PORT", *SLURM):  # jax reads its own environment
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert coordinator(environ) == found
