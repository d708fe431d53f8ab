"""`sexplsched gpus`: the GPUs of the cluster as Slurm knows them, or those of this machine as the driver does."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import click
from msgspec import Struct, to_builtins
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from explsched.cli import config_option, json_option
from explsched.errors import ExplschedError
from explsched.log import event
from explsched.tables import Column, lines, room
from slurm_plugin import config as configuration
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import ClusterRecords

_LOG = logging.getLogger("explsched.gpus")
_EXAMPLES = """\b
examples:
  sexplsched gpus
  sexplsched gpus --here
  sexplsched gpus --serve 9092

MEMORY is the memory of each GPU in MiB, if the GPU type or a node feature states it. --here also shows how much of it
is used; --serve exports the same figures to Prometheus.
"""


class NodeUse(Struct, frozen=True):
    """The GPUs of one node: `used` are those that jobs hold, whole or in part."""

    node: str
    state: str
    model: str
    memory_mib: int
    gpus: int
    used: int
    jobs: tuple[int, ...]


class LocalGpu(Struct, frozen=True):
    """One GPU of this machine.

    `busy_percent` is the time in which kernels ran, over the last moment; None where MIG divides the GPU, of which the
    driver does not tell it.
    """

    index: int
    uuid: str
    model: str
    memory_mib: int
    used_mib: int
    busy_percent: int | None


class NvmlError(ExplschedError):
    """The driver cannot be asked."""


def of_cluster(seen: ClusterRecords) -> list[NodeUse]:
    """A line for each node that has GPUs, by name."""
    jobs: defaultdict[str, list[int]] = defaultdict(list)
    whole: Counter[str] = Counter()
    shared: defaultdict[str, set[int]] = defaultdict(set)
    for job in seen.jobs:
        counts, indices = dict(job.gpu_nodes), dict(job.gpu_indices)
        for name in counts | indices:
            jobs[name].append(job.job_id)
            if job.gpus:
                whole[name] += counts.get(name, 0) or len(indices[name])
            else:
                shared[name].update(indices.get(name, ()))
    found = []
    for node in sorted(seen.nodes, key=lambda node: node.name):
        if node.gpus:
            model = ",".join(sorted(node.gpu_types))
            seen_used = whole[node.name] + len(shared[node.name])
            used = min(node.gpus, max(node.gpus_taken, seen_used))  # PrivateData may hide jobs, but not their GPUs
            of_node = tuple(jobs[node.name])
            found.append(NodeUse(node.name, node.state, model, node.gpu_memory_mib, node.gpus, used, of_node))
    return found


def of_this_machine() -> list[LocalGpu]:
    """What NVML tells, without GPUs that it cannot reach. Raises `NvmlError` where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return [gpu for index in range(pynvml.nvmlDeviceGetCount()) if (gpu := _reached(index))]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML, the NVIDIA driver's library: {error}") from error


def _reached(index: int) -> LocalGpu | None:
    """A GPU; None, with a warning, for one that has fallen off the bus or that we may not ask."""
    import pynvml

    try:
        return _local(index)
    except pynvml.NVMLError as error:
        event(_LOG, logging.WARNING, "GPU cannot be read", gpu=index, why=str(error))
        return None


def _local(index: int) -> LocalGpu:
    import pynvml

    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    name = pynvml.nvmlDeviceGetName(device)
    try:
        busy = int(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)
    except pynvml.NVMLError_NotSupported:
        busy = None
    uuid = str(pynvml.nvmlDeviceGetUUID(device))
    return LocalGpu(index, uuid, str(name), memory.total >> 20, memory.used >> 20, busy)


_LOCAL = (*(Column(title) for title in ("GPU", "MODEL")), *(Column(title, ">") for title in ("MEMORY", "USED", "BUSY")))
_CLUSTER = (
    *(Column(title) for title in ("NODE", "STATE", "MODEL")),
    *(Column(title, ">") for title in ("MEMORY", "USED")),
    Column("JOBS"),
)


def _busy_ratio(gpu: LocalGpu) -> float | None:
    return None if gpu.busy_percent is None else gpu.busy_percent / 100


class _Exported(Collector):
    """The GPUs of this machine as Prometheus scrapes them; `explsched_gpus_readable` is 0 where NVML gives nothing."""

    _NAMES: ClassVar[Sequence[tuple[str, str, Callable[[LocalGpu], float | None]]]] = (
        ("memory_bytes", "Memory of the GPU.", lambda gpu: float(gpu.memory_mib << 20)),
        ("memory_used_bytes", "Memory in use on the GPU.", lambda gpu: float(gpu.used_mib << 20)),
        ("busy_ratio", "Part of the time in which kernels ran.", _busy_ratio),
    )

    def collect(self) -> Iterator[Metric]:
        try:
            found = of_this_machine()
        except NvmlError as error:
            event(_LOG, logging.WARNING, "GPUs cannot be read", why=str(error))
            found = []
        readable = "GPUs of this node, as reported by the driver."
        yield GaugeMetricFamily("explsched_gpus_readable", readable, value=len(found))
        for name, text, value in self._NAMES:
            family = GaugeMetricFamily(f"explsched_gpu_{name}", text, labels=("gpu", "uuid", "model"))
            for gpu in found:
                if (told := value(gpu)) is not None:
                    family.add_metric((str(gpu.index), gpu.uuid, gpu.model), told)
            yield family


def _serve(address: str, port: int) -> None:
    """Answer scrapes until the process is ended. Raises `NvmlError` where the address cannot be had."""
    registry = CollectorRegistry()
    registry.register(_Exported())
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise NvmlError(f"{address}:{port}: {error.strerror}") from error
    host = f"[{address}]" if ":" in address else address
    click.echo(f"http://{host}:{server.server_port}/metrics", err=True)
    try:
        thread.join()
    finally:
        server.shutdown()


@click.command(epilog=_EXAMPLES)
@click.option("--here", is_flag=True, help="This machine's GPUs, from the driver (NVML).")
@click.option(
    "--serve", "port", type=click.IntRange(0, 65535), metavar="PORT", help="Export this machine's GPUs to Prometheus."
)
@click.option("--bind", "address", default="127.0.0.1", show_default=True, help="Address to serve on.")
@json_option
@config_option
def gpus(*, here: bool, port: int | None, address: str, as_json: bool, config_path: Path | None) -> None:
    """List GPUs: nodes, models, memory, use and jobs."""
    if port is not None:
        _serve(address, port)
        return
    found: Sequence[NodeUse | LocalGpu] = of_this_machine() if here else _of_slurm(config_path)
    if as_json:
        click.echo(json.dumps(to_builtins(found), indent=1))
        return
    columns = _LOCAL if here else _CLUSTER
    click.echo("\n".join(lines(columns, (_cells(one) for one in found), room())))


def _of_slurm(config_path: Path | None) -> list[NodeUse]:
    return of_cluster(CliClient(configuration.load(config_path).slurm.timeout_s).look())


def _cells(one: NodeUse | LocalGpu) -> tuple[object, ...]:
    if isinstance(one, LocalGpu):
        busy = None if one.busy_percent is None else f"{one.busy_percent} %"
        return (one.index, one.model, one.memory_mib, one.used_mib, busy)
    jobs = ",".join(map(str, one.jobs)) or None
    return (one.node, one.state, one.model or None, one.memory_mib or None, f"{one.used}/{one.gpus}", jobs)
