"""What the environment of a launcher says: which process this is, where process 0 listens, which GPUs stay idle.

jax.distributed finds jobs of Open MPI, SLURM, Cloud TPU, GKE and Kubernetes by itself. Under SLURM and Open MPI it
gives each process the one GPU of its local number. With fewer processes than GPUs on a node the others stay idle.

    launcher   number of the process   number on its node           processes on its node
    SLURM      SLURM_PROCID            SLURM_LOCALID                SLURM_STEP_TASKS_PER_NODE
    Open MPI   OMPI_COMM_WORLD_RANK    OMPI_COMM_WORLD_LOCAL_RANK   OMPI_COMM_WORLD_LOCAL_SIZE
"""

import glob
import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)
_GPUS = "/dev/nvidia[0-9]*"
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
"""Variables of a task that srun has started; jax wants all of them."""
_BY_ADDRESS = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


class Task(NamedTuple):
    """A process of a job, as its launcher describes it."""

    launcher: str
    """`SLURM` or `Open MPI`."""
    number: int
    local: int
    """Its number among the processes of its node."""
    of_node: int
    """Count of processes on its node; 0 where the launcher does not say it."""


def task(environ: Mapping[str, str]) -> Task | None:
    """Returns this process's place in a job of Open MPI or SLURM; None elsewhere. In jax's order."""
    try:
        # jax looks for Open MPI's contact address, which mpirun sets for its own processes alone.
        if "OMPI_MCA_orte_hnp_uri" in environ:
            number, local, count = (environ[f"OMPI_COMM_WORLD_{name}"] for name in ("RANK", "LOCAL_RANK", "LOCAL_SIZE"))
            return Task("Open MPI", int(number), int(local), int(count))
        if all(name in environ for name in _SLURM):
            counts = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
            of_node = _of_node(counts, int(environ.get("SLURM_NODEID", "0")))
            return Task("SLURM", int(environ["SLURM_PROCID"]), int(environ["SLURM_LOCALID"]), of_node)
    except (KeyError, ValueError):  # half of a launcher's variables, as a shell within a job may have
        return None
    return None


def _of_node(counts: str, node: int) -> int:
    """Returns a node's count of tasks from SLURM's list: `8(x2),4` is 8, 8 and 4. 0: it is not in the list."""
    each: list[int] = []
    for part in counts.split(","):
        if match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part):
            each += [int(match[1])] * int(match[2] or 1)
    return each[node] if node < len(each) else 0


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Returns how many NVIDIA GPUs this process may use, without starting jax."""
    # The user's choice of a platform counts first: a job on CPUs leaves no GPU idle by mistake.
    if environ.get("JAX_PLATFORMS", "") not in ("", "gpu") and "cuda" not in environ["JAX_PLATFORMS"]:
        return 0
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return len(glob.glob(_GPUS))
    # As CUDA reads it: the list ends at the first name that is none (-1, NoDevFiles).
    names = [name.strip() for name in chosen.split(",")]
    valid = [bool(re.match(r"\d|GPU-|MIG-", name)) for name in names]
    return valid.index(False) if False in valid else len(valid)


def idle_gpus(environ: Mapping[str, str], gpus: int) -> str:
    """Returns a line about GPUs that no process would use, with the mend; "" where each has its process.

    Args:
        environ: the environment of this process.
        gpus: how many GPUs it may use (`visible_gpus`).
    """
    me = task(environ)
    # With a list of the user's own, jax takes that list.
    if me is None or not gpus or environ.get("JAX_LOCAL_DEVICE_IDS"):
        return ""
    if me.local >= gpus:
        # The launcher has bound each process to GPUs of its own, and they are numbered from 0 in each.
        return (
            f"under {me.launcher} jax gives process {me.number} the GPU of its number on the node, {me.local}, and it "
            f"may use {_gpus(gpus)}; set JAX_LOCAL_DEVICE_IDS={_list(0, gpus)}, or do not bind GPUs to processes"
        )
    # A process that sees one GPU among several processes has been bound to it.
    if not me.of_node or gpus <= me.of_node or (gpus == 1 and me.of_node > 1):
        return ""
    option = "--ntasks-per-node=" if me.launcher == "SLURM" else "mpirun -N "
    one_each = f"start a process for each GPU ({option}{gpus})"
    # One process may take all. Several would need lists of their own, which one export cannot say.
    mend = f"set JAX_LOCAL_DEVICE_IDS={_list(0, gpus)}, or {one_each}" if me.of_node == 1 else one_each
    idle = gpus - me.of_node
    return (
        f"under {me.launcher} jax gives each process one GPU, and this node has {_gpus(gpus)} for "
        f"{me.of_node} process{'es' if me.of_node > 1 else ''}: {_gpus(idle)} ({_list(me.of_node, gpus)}) "
        f"stay{'s' if idle == 1 else ''} idle; {mend}"
    )


def warn_of_idle_gpus(environ: Mapping[str, str]) -> None:
    """Logs the line of `idle_gpus`: once for a job, since its first node mostly speaks for all."""
    me, gpus = task(environ), visible_gpus(environ)
    # A process whose one GPU jax will not find speaks for itself.
    if me and (not me.number or me.local >= gpus) and (line := idle_gpus(environ, gpus)):
        logger.warning(line)


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count != 1 else ''}"


def _list(start: int, stop: int) -> str:
    return ",".join(map(str, range(start, stop)))


def detection(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns arguments of jax.distributed.initialize: how it looks for the job. Warns of idle GPUs."""
    warn_of_idle_gpus(environ)
    # In a pod whose variables describe the job jax need not ask the cluster. It would do so all the same, for the
    # number of the GPU, and warn that the package `kubernetes` is missing.
    if "KUBERNETES_SERVICE_HOST" in environ and all(environ.get(name) for name in _BY_ADDRESS):
        return {"cluster_detection_method": "deactivate"}
    return {}


def coordinator(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Returns (address of process 0, number of this process) where the environment says them; None elsewhere.

    Raises:
        ValueError, RuntimeError: when the variables of SLURM or Open MPI are not as jax reads them.
    """
    address, number = environ.get("JAX_COORDINATOR_ADDRESS", ""), environ.get("JAX_PROCESS_ID", "")
    me = task(environ)
    if not address and me:
        # The classes that read these variables have no public name.
        from jax._src.clusters.ompi_cluster import OmpiCluster
        from jax._src.clusters.slurm_cluster import SlurmCluster

        cluster = SlurmCluster if me.launcher == "SLURM" else OmpiCluster
        address = cluster.get_coordinator_address(None, environ.get("JAX_COORDINATOR_PORT"))
    if not address:
        return None
    return address, int(number or (me.number if me else 0))
