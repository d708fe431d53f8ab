"""What `sexplsched doctor` finds out about Slurm: what it can do, whether it answers, and who may steer it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence

from slurm_plugin.cli.finding import Finding
from slurm_plugin.client.capabilities import NEEDED, OLDEST, OPERATORS, Capabilities
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.errors import SlurmError
from slurm_plugin.client.records import SlurmNode
from slurm_plugin.observation.observe import without_nodes

_REFUSALS = ("invalid user id", "permission", "denied")  # Slurm's words differ by version


def slurm(client: CliClient, partitions: Sequence[str]) -> Iterator[Finding]:
    """All of it. `partitions` are those that the configuration names."""
    try:
        can = client.capabilities()
        yield from _capabilities(can)
        load = client.load()
        yield Finding("slurmctld", "ok", f"answers; {load.server_threads} threads, {load.jobs_pending} jobs pending")
        nodes = client.nodes()
        gpus = sum(node.gpus for node in nodes)
        advice = "" if gpus else "no GPUs: set GresTypes=gpu and Gres=gpu:N (slurm.conf, gres.conf)"
        yield Finding("nodes", "ok" if gpus else "note", f"{len(nodes)} nodes, {gpus} GPUs", advice)
        yield from _partitions(partitions, nodes)
        if can.has(OPERATORS):
            yield _slurmdbd(client)
        yield privilege(can)
    except SlurmError as error:
        yield Finding("slurmctld", "fault", str(error), "is slurmctld running, and SLURM_CONF right?")


def privilege(can: Capabilities) -> Finding:
    """Whether this user may steer. Slurm looks at the rights before it looks whether there is such a reservation."""
    argv = ["scontrol", "delete", "ReservationName=explsched_doctor"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    words = (done.stderr or done.stdout).strip()
    if any(refusal in words.lower() for refusal in _REFUSALS):
        found = f"uid {os.geteuid()} may not steer jobs ({words})"
        return Finding("privilege", "note", found, _how_to_get_it(can))
    # An admin looks as root, whom Slurm refuses nothing: that says nothing of the daemon.
    advice = "" if os.geteuid() else "for the daemon's own user: runuser -u explsched -- sexplsched doctor"
    return Finding("privilege", "ok", f"uid {os.geteuid()} may steer jobs", advice)


def _how_to_get_it(can: Capabilities) -> str:
    if can.has(OPERATORS):
        return "sacctmgr add user <daemon's user> account=... AdminLevel=Operator"
    return "set up slurmdbd, which knows operators: without it Slurm lets nobody steer but root and SlurmUser"


def _capabilities(found: Capabilities) -> Iterator[Finding]:
    """The table of what this Slurm can do. Only order and backfill are needed; the rest is good to know."""
    too_old = "" if found.version >= OLDEST else f"explsched is tested with Slurm {OLDEST.release} and newer"
    yield Finding("Slurm", "note" if too_old else "ok", f"version {found.version}", too_old)
    for capability, there in found:
        if there:
            yield Finding("Slurm can", "ok", f"{capability.name}: {capability.use}")
            continue
        level = "fault" if capability in NEEDED else "note"
        advice = f"set {capability.key}={capability.word}" if level == "fault" else ""
        missing = f"no {capability.name} ({found.absence(capability)}): {capability.use}"
        yield Finding("Slurm cannot", level, missing, advice)


def _partitions(named: Sequence[str], nodes: Iterable[SlurmNode]) -> Iterator[Finding]:
    empty = without_nodes(named, nodes)
    if empty:
        known = sorted({name for node in nodes for name in node.partitions})
        found = f"slurm.partitions names {', '.join(empty)}, in which no node is: no job of it is steered"
        yield Finding("partitions", "fault", found, f"mend slurm.partitions (Slurm has {', '.join(known)})")


def _slurmdbd(client: CliClient) -> Finding:
    """Operators and history are there. slurmctld does without it for a while, so its absence is easily overlooked."""
    try:
        client.clusters()
    except SlurmError as error:
        advice = "is slurmdbd running? Jobs and daemon go on meanwhile; sacct and new rights do not"
        return Finding("slurmdbd", "note", str(error), advice)
    return Finding("slurmdbd", "ok", "answers")
