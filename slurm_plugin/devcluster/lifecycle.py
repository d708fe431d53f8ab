"""Up, down and what lies between."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_plugin.devcluster import processes, programs
from slurm_plugin.devcluster.accounting import start_accounting
from slurm_plugin.devcluster.processes import Process
from slurm_plugin.devcluster.slurm_conf import Ports, gres_conf, slurm_conf
from slurm_plugin.devcluster.spec import ClusterSpec, DevClusterError, Layout

_MOST_SOCKET_PATH = 100  # bytes; sun_path holds 108 and munge appends ".lock"
_START_S = 60.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A private cluster as its directory describes it."""

    layout: Layout
    spec: ClusterSpec
    daemons: tuple[Process, ...]

    def env(self) -> dict[str, str]:
        """What to add to an environment so that Slurm's commands talk to this cluster."""
        added = {"SLURM_CONF": str(self.layout.slurm_conf)}
        if os.environ.get(programs.PREFIX_VARIABLE):
            added["PATH"] = programs.search_path()
        return added

    def dead(self) -> tuple[Process, ...]:
        """Daemons that should run and do not."""
        return tuple(daemon for daemon in self.daemons if not daemon.is_alive())

    @property
    def state(self) -> str:
        """`running`, `degraded` (some daemon has died) or `stale` (all have)."""
        dead = len(self.dead())
        return "running" if not dead else "stale" if dead == len(self.daemons) else "degraded"


def load(directory: Path) -> Cluster:
    """The cluster of a directory. Raises `DevClusterError` if it holds none."""
    layout = Layout(directory.resolve())
    try:
        data = json.loads(layout.state.read_text(encoding="utf-8"))
        spec = ClusterSpec(**{**data["spec"], "extra": tuple(map(tuple, data["spec"]["extra"]))})
        return Cluster(layout, spec, tuple(Process(**daemon) for daemon in data["daemons"]))
    except FileNotFoundError as error:
        raise DevClusterError(f"{directory}: no cluster lies here ({layout.state.name} is missing)") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DevClusterError(f"{layout.state}: cannot be understood: {error}") from error


def up(spec: ClusterSpec, directory: Path, progress: Progress = lambda _line: None) -> Cluster:
    """Start a cluster; returns when every node is idle. A stale cluster in the directory is removed first.

    Raises `DevClusterError`, leaving nothing running, if it does not come up.
    """
    layout = Layout(directory.resolve())
    _check_place(layout)
    with ExitStack() as on_failure:
        on_failure.callback(_end, layout, ())
        cluster = _start_all(spec, layout, progress)
        on_failure.pop_all()
    return cluster


def down(directory: Path) -> None:
    """End every process of the cluster and remove its directory."""
    cluster = load(directory)
    _end(cluster.layout, cluster.daemons)
    shutil.rmtree(cluster.layout.root)


def _check_place(layout: Layout) -> None:
    if os.geteuid() != 0:
        raise DevClusterError("must be root: GPU stand-ins are device nodes, and slurmd starts jobs as their users")
    if len(str(layout.munge_socket).encode()) > _MOST_SOCKET_PATH:
        raise DevClusterError(f"{layout.root}: the path is too long for a unix socket, choose a shorter one")
    if not layout.root.exists():
        return
    if not layout.root.is_dir():
        raise DevClusterError(f"{layout.root}: is not a directory")
    if layout.state.exists():
        found = load(layout.root)
        if found.state != "stale":
            raise DevClusterError(f"{layout.root}: a cluster is {found.state} here; end it with `down` first")
        down(layout.root)
    elif any(layout.root.iterdir()):
        raise DevClusterError(f"{layout.root}: is not empty and holds no cluster; choose another directory")


def _start_all(spec: ClusterSpec, layout: Layout, progress: Progress) -> Cluster:
    host = socket.gethostname().split(".")[0]
    _make_directories(spec, layout)
    environment = {**os.environ, "PATH": programs.search_path(), "SLURM_CONF": str(layout.slurm_conf)}
    environment[processes.MARKER] = str(layout.root)
    with _free_ports(spec.nodes + 3) as numbers:
        ports = Ports(numbers[0], tuple(numbers[3:]), numbers[1], numbers[2])
    text = slurm_conf(spec, layout, ports, host)
    _write(layout.slurm_conf, text)
    _write(layout.slurm_conf.with_name("gres.conf"), gres_conf(spec, layout))

    daemons: list[Process] = []

    def launch(name: str, *argv: str) -> None:
        progress(f"starting {name}")
        daemons.append(processes.start(name, argv, layout.logs / f"{name}.out", environment))
        _save(Cluster(layout, spec, tuple(daemons)))

    munge = layout.root / "munge"
    _write_private(munge / "munge.key", secrets.token_bytes(128))
    launch(
        "munged",
        programs.find("munged"),
        "--foreground",
        "--force",  # the directory may lie below a world-writable one such as /tmp
        *(f"--{option}={munge}/munge.{end}" for option, end in _MUNGE_FILES),
    )
    _wait_for("munged", layout, layout.munge_socket.exists, daemons)
    if spec.accounting:
        start_accounting(layout, ports, launch, environment, lambda name, test: _wait_for(name, layout, test, daemons))
    launch("slurmctld", programs.find("slurmctld"), "-D", "-f", str(layout.slurm_conf))
    for name in spec.node_names:
        launch(f"slurmd.{name}", programs.find("slurmd"), "-D", "-N", name, "-f", str(layout.slurm_conf))
    progress("waiting for the nodes")
    _wait_for("slurmctld", layout, lambda: _all_idle(environment, spec.nodes), daemons)
    return Cluster(layout, spec, tuple(daemons))


_MUNGE_FILES = (
    ("key-file", "key"),
    ("socket", "socket"),
    ("pid-file", "pid"),
    ("log-file", "log"),
    ("seed-file", "seed"),
)


def _make_directories(spec: ClusterSpec, layout: Layout) -> None:
    for part in ("etc", "munge", "state", "run", "log", "gpu", *(f"spool/{name}" for name in spec.node_names)):
        (layout.root / part).mkdir(parents=True, mode=0o755)
    try:
        for gpu in range(spec.gpus_per_node):
            # Slurm accepts only device nodes as GPUs; these have the numbers of /dev/null.
            device = layout.root / "gpu" / f"nvidia{gpu}"
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            device.chmod(0o666)
    except PermissionError as error:
        raise DevClusterError(f"{layout.root}/gpu: device nodes cannot be made here ({error.strerror})") from error


@contextmanager
def _free_ports(count: int) -> Iterator[list[int]]:
    """Ports nobody listens on at this moment. All are held open together, so that none comes twice."""
    with ExitStack() as sockets:
        held = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        yield [one.getsockname()[1] for one in held]


def _wait_for(name: str, layout: Layout, ready: Callable[[], bool], daemons: list[Process]) -> None:
    deadline = time.monotonic() + _START_S
    while not ready():
        dead = [daemon.name for daemon in daemons if not daemon.is_alive()]
        if dead or time.monotonic() > deadline:
            culprit = dead[0] if dead else name
            what = "ended" if dead else f"was not ready after {_START_S:.0f} s"
            raise DevClusterError(f"{culprit} {what}; the end of its log:\n{_log_tail(layout, culprit)}")
        time.sleep(0.05)


def _log_tail(layout: Layout, name: str) -> str:
    lines: list[str] = []
    for path in (layout.logs / f"{name}.log", layout.logs / f"{name}.out", layout.root / "munge" / f"{name[:5]}.log"):
        if path.exists():
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
    return "\n".join(lines) or "(empty)"


def _all_idle(environment: dict[str, str], nodes: int) -> bool:
    done = subprocess.run(
        [programs.find("sinfo"), "-h", "-N", "-o", "%T"], capture_output=True, text=True, env=environment, check=False
    )
    return done.stdout.split() == ["idle"] * nodes


def _end(layout: Layout, daemons: tuple[Process, ...]) -> None:
    """End what runs: the daemons that start jobs first, then the jobs, munged last."""
    if not daemons and layout.state.exists():
        daemons = load(layout.root).daemons
    processes.stop([d for d in daemons if d.name.startswith("slurm")])
    processes.stop([d for d in daemons if not d.name.startswith("slurm")])
    processes.kill_members(layout.root, layout.cluster_name)


def _save(cluster: Cluster) -> None:
    """Record what runs before anything else happens, so that `down` works after a crash at any point."""
    data = {"spec": asdict(cluster.spec), "daemons": [asdict(daemon) for daemon in cluster.daemons]}
    temporary = cluster.layout.state.with_suffix(".new")
    _write(temporary, json.dumps(data, indent=1))
    temporary.replace(cluster.layout.state)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


def _write_private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
