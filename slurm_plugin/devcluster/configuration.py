"""The text of the configuration files of a private cluster: slurm.conf, gres.conf, cgroup.conf and slurmdbd.conf."""

from __future__ import annotations

from msgspec import Struct

from slurm_plugin.client.capabilities import CGROUPS_OFF, SlurmVersion
from slurm_plugin.devcluster.cluster import ClusterSpec, Layout, Product, ProductState


class Ports(Struct, frozen=True):
    """Free TCP ports on loopback."""

    slurmctld: int
    slurmd: tuple[int, ...]
    slurmdbd: int


class Host(Struct, frozen=True):
    """The host of a cluster: its name up to the first dot, and whether its full name points to 127.0.0.1."""

    short_name: str
    is_loopback: bool


# Keys of which slurm.conf may hold several lines: these add to ours, all others replace ours.
_REPEATABLE = frozenset({"slurmctldhost", "nodename", "partitionname", "nodeset", "downnodes", "include"})


DATABASE = "slurm_acct_db"
"""Where slurmdbd keeps its tables; also its own default."""

_ON_LOOPBACK = "NoInAddrAny,NoCtldInAddrAny"
"""Makes Slurm listen where this host's name points to, instead of on all addresses."""


def slurm_conf(spec: ClusterSpec, layout: Layout, ports: Ports, host: Host) -> str:
    """slurm.conf; the same text serves Slurm 22.05 to 26.05."""
    root = layout.root
    has_shards = spec.gpus_per_node and spec.shards_per_node
    # The default memory keeps a job without --mem from taking a whole node (CR_Core_Memory).
    settings = {
        "ClusterName": layout.cluster_name,
        "SlurmctldHost": f"{host.short_name}(127.0.0.1)",
        "SlurmctldPort": str(ports.slurmctld),
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket}",
        "CredType": "cred/munge",
        "StateSaveLocation": f"{root}/state",
        "SlurmdSpoolDir": f"{root}/spool/%n",
        "SlurmctldPidFile": f"{root}/run/slurmctld.pid",
        "SlurmdPidFile": f"{root}/run/slurmd.%n.pid",
        "SlurmctldLogFile": f"{layout.logs}/slurmctld.log",
        "SlurmdLogFile": f"{layout.logs}/slurmd.%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "MailProg": "/bin/true",  # a private cluster writes to nobody
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Memory" if spec.is_linear else "CR_Core_Memory",
        "DefMemPerCPU": str(max(1, spec.memory_mib_per_node // spec.cpus_per_node)),
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=10,bf_resolution=10",
        "PriorityType": "priority/multifactor",
        "PriorityWeightAge": "1000",
        "PriorityWeightFairshare": "1000",
        "GresTypes": "gpu,shard" if has_shards else "gpu",  # select/linear starts with no shard at all
        "SlurmdParameters": "config_overrides",
        "ReturnToService": "2",
        "JobRequeue": "1",
        "KillWait": "5",
        "MinJobAge": "60",
        "AccountingStorageType": "accounting_storage/none",
    }
    if spec.product is not ProductState.ABSENT:
        settings["TaskProlog"] = str(Product(layout.product).task_prolog)
    if host.is_loopback:
        settings["CommunicationParameters"] = _ON_LOOPBACK
    if spec.accounting:
        settings |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": str(ports.slurmdbd),
            # Towards slurmdbd Slurm does not heed AuthInfo: this "password" is the path of munged's socket.
            "AccountingStoragePass": str(layout.munge_socket),
            "AccountingStorageTRES": "gres/gpu,gres/shard" if has_shards else "gres/gpu",
            "AccountingStoreFlags": "job_comment",
            "JobAcctGatherType": "jobacct_gather/linux",
        }
    known = {key.lower(): key for key in settings}  # Slurm ignores the case of keys
    for key, value in spec.extra:
        if key.lower() not in _REPEATABLE:
            settings[known.setdefault(key.lower(), key)] = value
    lines = [f"{key}={value}" for key, value in settings.items()]
    gres = f" Gres={_gres(spec)}" if spec.gpus_per_node else ""
    # One line per node, each with a host name of its own: Slurm built without --enable-multiple-slurmd neither pairs a
    # port list with a node list nor knows a second node of the same host ("Duplicated NodeHostName").
    lines += [
        f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs={spec.cpus_per_node} "
        f"RealMemory={spec.memory_mib_per_node}{gres} State=UNKNOWN"
        for name, port in zip(spec.node_names, ports.slurmd, strict=True)
    ]
    lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 State=UP")
    lines += [
        f"{key} {value}" if key.lower() == "include" else f"{key}={value}"
        for key, value in spec.extra
        if key.lower() in _REPEATABLE
    ]
    return "\n".join(lines) + "\n"


def _gres(spec: ClusterSpec) -> str:
    gpus = f"gpu:{spec.gpus_per_node}"
    return f"{gpus},shard:{spec.shards_per_node}" if spec.shards_per_node else gpus


def cgroup_conf(version: SlurmVersion) -> str:
    """cgroup.conf; without it slurmd makes cgroups for its nodes on the host. Empty where it cannot be helped."""
    return "CgroupPlugin=disabled\n" if CGROUPS_OFF.is_in(version) else ""


def gres_conf(spec: ClusterSpec, layout: Layout) -> str:
    """gres.conf; every node's GPUs are the same stand-in devices."""
    if not spec.gpus_per_node:
        return ""
    last = spec.gpus_per_node - 1
    devices = f"{layout.root}/gpu/nvidia[0-{last}]" if last else f"{layout.root}/gpu/nvidia0"
    lines: list[str] = []
    for name in spec.node_names:
        lines.append(f"NodeName={name} Name=gpu File={devices}")
        if spec.shards_per_node:
            lines.append(f"NodeName={name} Name=shard Count={spec.shards_per_node}")
    return "\n".join(lines) + "\n"


def slurmdbd_conf(layout: Layout, ports: Ports, host: Host) -> str:
    """slurmdbd.conf. The database knows root by its socket, so there is no password."""
    listening = f"CommunicationParameters={_ON_LOOPBACK}\n" if host.is_loopback else ""
    return f"""{listening}AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={ports.slurmdbd}
SlurmUser=root
LogFile={layout.logs}/slurmdbd.log
PidFile={layout.root}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc={DATABASE}
"""
