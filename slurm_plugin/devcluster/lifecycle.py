"""Brings the daemons of a private cluster up, in order, and waits for each; takes them down again."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from explsched.atomic_file import drafts
from explsched.process import ProcessId
from slurm_plugin.devcluster import machine
from slurm_plugin.devcluster.accounting import database_socket_path, start_accounting
from slurm_plugin.devcluster.cluster import DAEMON, Cluster, ClusterHealth, ClusterSpec, Layout, Product, ProductState
from slurm_plugin.devcluster.configuration import Host, Ports, cgroup_conf, gres_conf, slurm_conf
from slurm_plugin.devcluster.machine import DevClusterError

Progress = Callable[[str], None]
"""Called with one line for each step."""

_PATIENCE_S = 60.0
_POLL_S = 0.05
_SINFO_PATIENCE_S = 2.0
_TAIL_LINES = 12
_CLUSTER_NAME = re.compile(r"^\s*ClusterName\s*=", re.IGNORECASE | re.MULTILINE)
_SMALL_PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo")
_ACCOUNTING_PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")


class Startup:
    """One attempt to start a cluster. `daemons` grows as they start, so that a failure knows what to end."""

    def __init__(self, spec: ClusterSpec, layout: Layout, progress: Progress) -> None:
        self._spec = spec
        self._layout = layout
        self._progress = progress
        self.daemons: list[ProcessId] = []
        self.environment = _environment(layout)

    def run(self) -> Cluster:
        """Start everything; returns when every node is idle. Raises `DevClusterError`."""
        needed = _SMALL_PROGRAMS + (_ACCOUNTING_PROGRAMS if self._spec.accounting else ())
        machine.check(needed)
        # On record before anything runs: from here on `down` finds what belongs to this directory.
        self._record()
        self._make_directories()
        if self._spec.product is not ProductState.ABSENT:
            Product(self._layout.product).install()
        with machine.reserved(self._spec.nodes + 2) as numbers:
            chosen = Ports(slurmctld=numbers[0], slurmdbd=numbers[1], slurmd=numbers[2:])
            host = _this_host()
            if not host.is_loopback:
                self._progress(
                    f"note: the name {socket.gethostname()} is not 127.0.0.1, so Slurm listens on all addresses"
                )
            self._write_configuration(chosen, host)
            self._start_munged()
            if self._spec.accounting:
                start_accounting(self._layout, chosen, host, self)
            conf = str(self._layout.slurm_conf)
            self.start("slurmctld", machine.find("slurmctld"), "-D", "-f", conf)
            for name in self._spec.node_names:
                self.start(f"slurmd.{name}", machine.find("slurmd"), "-D", "-N", name, "-f", conf)
            self._progress("waiting for the nodes")
            self.wait_for("slurmctld", self._all_idle)
        if self._spec.product is ProductState.RUNNING:
            product = Product(self._layout.product)
            self.start(DAEMON, *product.daemon_argv())
            self.wait_for(DAEMON, product.daemon_works)
        return self._record()

    def start(self, name: str, *argv: str) -> None:
        """Start a daemon and record it before anything else happens."""
        self._progress(f"starting {name}")
        log = self._layout.logs / f"{name}.out"
        self.daemons.append(machine.start(name, argv, log, self._layout.root / "run", self.environment))
        self._record()

    def wait_for(self, name: str, ready: Callable[[], bool]) -> None:
        """Return when `ready` does. Raises `DevClusterError` with a log's end if a daemon dies or time runs out."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not ready():
            dead = [daemon.name for daemon in self.daemons if not daemon.is_alive()]
            if dead or time.monotonic() > deadline_s:
                culprit = dead[0] if dead else name
                what = "ended" if dead else f"was not ready after {_PATIENCE_S:.0f} s"
                raise DevClusterError(
                    f"{culprit} {what}; logs are in {self._layout.logs}, this one ends:\n{self._log_tail(culprit)}"
                )
            time.sleep(_POLL_S)

    def _record(self) -> Cluster:
        cluster = Cluster(self._layout, self._spec, tuple(self.daemons), machine.prefix())
        cluster.save()
        return cluster

    def _make_directories(self) -> None:
        spool = (f"spool/{name}" for name in self._spec.node_names)
        for part in ("etc", "munge", "state", "run", "log", "gpu", "spool", *spool):
            directory = self._layout.root / part
            directory.mkdir()
            directory.chmod(0o755)  # whatever the umask: jobs of ordinary users read these
        try:
            for gpu in range(self._spec.gpus_per_node):
                # Slurm accepts only device nodes as GPUs; these have the numbers of /dev/null.
                device = self._layout.root / "gpu" / f"nvidia{gpu}"
                os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
                device.chmod(0o666)
        except PermissionError as error:
            raise DevClusterError(
                f"{self._layout.root}/gpu: mknod is not permitted ({error.strerror}); making device nodes takes "
                "CAP_MKNOD, which containers often lack"
            ) from error

    def _write_configuration(self, chosen: Ports, host: Host) -> None:
        conf = self._layout.slurm_conf
        _write(conf, slurm_conf(self._spec, self._layout, chosen, host))
        _write(conf.with_name("gres.conf"), gres_conf(self._spec, self._layout))
        for name, text in self._spec.files:
            _write(conf.with_name(name), text)
        if cgroup := cgroup_conf(machine.slurm_version()):
            _write(conf.with_name("cgroup.conf"), cgroup)

    def _start_munged(self) -> None:
        munge = self._layout.root / "munge"
        key = munge / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        self.start(
            "munged",
            machine.find("munged"),
            "--foreground",
            "--force",  # the directory may lie below a world-writable one such as /tmp
            "--num-threads=10",  # what Slurm asks for; with munge's default of 2 busy clusters see time-outs
            f"--key-file={key}",
            f"--socket={self._layout.munge_socket}",
            f"--pid-file={munge}/munge.pid",
            f"--log-file={self._layout.logs}/munged.log",
            f"--seed-file={munge}/munge.seed",
        )
        self.wait_for("munged", self._layout.munge_socket.exists)

    def _all_idle(self) -> bool:
        try:
            done = subprocess.run(
                [machine.find("sinfo"), "-h", "-N", "-p", "main", "-o", "%T"],
                capture_output=True,
                text=True,
                env=self.environment,
                check=False,
                timeout=_SINFO_PATIENCE_S,
            )
        except subprocess.TimeoutExpired:
            return False  # sinfo retries for nine seconds when slurmctld is gone; see sooner whether it is
        return done.stdout.split() == ["idle"] * self._spec.nodes

    def _log_tail(self, name: str) -> str:
        # What a daemon prints holds also what it says before it opens its log.
        for path in (self._layout.logs / f"{name}.out", self._layout.logs / f"{name}.log"):
            if path.exists() and (text := path.read_text(encoding="utf-8", errors="replace").strip()):
                return "\n".join(text.splitlines()[-_TAIL_LINES:])
        return "(empty)"


def _this_host() -> Host:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:  # Slurm will say so
        address = ""
    # Not any of 127.0.0.0/8: srun would listen on 127.0.1.1, say, and be called back on 127.0.0.1.
    return Host(name.split(".")[0], is_loopback=address == "127.0.0.1")


def _environment(layout: Layout) -> Mapping[str, str]:
    """The daemons' environment: the caller's, without what a job of another cluster would bring along."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH_", "MUNGE"))}
    return inherited | {
        "PATH": machine.search_path(machine.prefix()),
        "SLURM_CONF": str(layout.slurm_conf),
        "MYSQL_UNIX_PORT": str(database_socket_path(layout)),
        machine.MARKER: str(layout.root),
    }


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


_MOST_SOCKET_PATH = 100  # bytes; sun_path holds 108 and munge appends ".lock"
_NOT_IN_SLURM_CONF = frozenset(" \t\n\"'#=,;%[]\\")
_LONGEST_SOCKET = "spool/n64/n64_1234567890.4294967291"  # slurmstepd's, one per job step


def up(spec: ClusterSpec, directory: Path, progress: Progress = lambda _line: None) -> Cluster:
    """Start a cluster; returns when every node is idle. A stale cluster in the directory is removed first.

    Raises:
        DevClusterError: it did not come up (nothing is left running, the logs stay), or the directory is in use.

    """
    layout = Layout(directory.resolve())
    _check_root("`up` makes device nodes (mknod) as stand-ins for GPUs, and slurmd starts jobs as their users")
    _check_included(spec, layout)
    _make_root(layout)
    with _locked(layout):
        _check_unused(layout, progress)
        _warn_if_closed(layout, progress)
        startup = Startup(spec, layout, progress)
        with ExitStack() as on_failure:
            on_failure.callback(lambda: _end(layout, startup.daemons))
            try:
                cluster = startup.run()
            except OSError as error:  # a full disk, which names no file
                raise DevClusterError(f"{error.filename or layout.root}: {error.strerror}") from error
            on_failure.pop_all()
    return cluster


def down(directory: Path) -> None:
    """End every process of the cluster and remove its files; the directory too, if nothing else lies in it.

    Raises:
        DevClusterError: no cluster lies there, or a process cannot be ended.

    """
    cluster = Cluster.load(directory)
    _check_root("`down` ends daemons of root")
    with _locked(cluster.layout):
        # Again, for `up` may have ended in between.
        cluster = Cluster.load(directory)
        _end(cluster.layout, cluster.daemons)
        _remove(cluster.layout)
        if not any(cluster.layout.root.iterdir()):
            cluster.layout.root.rmdir()


def _check_root(why: str) -> None:
    if os.geteuid() != 0:
        raise DevClusterError(f"must be root, is uid {os.geteuid()}: {why}")


def _check_included(spec: ClusterSpec, layout: Layout) -> None:
    """Slurm's daemons would look for a missing file for a minute, and take a ClusterName from one that is there."""
    files = dict(spec.files)
    for name in (value for key, value in spec.extra if key.lower() == "include"):
        path = layout.slurm_conf.parent / name
        try:
            text = files[name] if name in files else path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise DevClusterError(f"Include={name}: {path}: {error.strerror}") from error
        if _CLUSTER_NAME.search(text):
            raise DevClusterError(f"Include={name}: {path} sets ClusterName, by which `down` knows the cluster's jobs")


def _make_root(layout: Layout) -> None:
    longest = len(os.fsencode(layout.root / _LONGEST_SOCKET))
    if longest > _MOST_SOCKET_PATH:
        raise DevClusterError(
            f"{layout.root}: the path is {longest - _MOST_SOCKET_PATH} bytes too long for a unix socket in it; "
            "choose a shorter one"
        )
    # What is not printable includes bytes that are no UTF-8.
    strange = {one for one in str(layout.root) if one in _NOT_IN_SLURM_CONF or not one.isprintable()}
    if strange:
        raise DevClusterError(
            f"{layout.root}: Slurm's files cannot name a path with {', '.join(map(repr, sorted(strange)))}"
        )
    if layout.root.exists():
        if not layout.root.is_dir():
            raise DevClusterError(f"{layout.root}: is not a directory")
        return
    try:
        layout.root.mkdir(parents=True)
        layout.root.chmod(0o755)
    except OSError as error:
        raise DevClusterError(f"{layout.root}: cannot be made: {error.strerror}") from error


@contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    """Keep a second `up` or `down` of the same directory out. The kernel drops the lock if we die."""
    handle = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DevClusterError(f"{layout.root}: another `up` or `down` is at work here") from error
        yield
    finally:
        os.close(handle)


def _check_unused(layout: Layout, progress: Progress) -> None:
    if layout.state.exists():
        found = Cluster.load(layout.root)
        state = found.state
        if state is not ClusterHealth.STALE:
            raise DevClusterError(f"{layout.root}: a cluster is {state} here; end it with `down` first")
        progress("removing a stale cluster")
        _end(layout, found.daemons)  # jobs may have outlived the daemons
        _remove(layout)
    elif any(layout.root.iterdir()):
        raise DevClusterError(f"{layout.root}: is not empty and holds no cluster; choose another directory")


def _warn_if_closed(layout: Layout, progress: Progress) -> None:
    closed = [path for path in (layout.root, *layout.root.parents) if not path.stat().st_mode & 0o001]
    if closed:
        progress(f"note: only root can use this cluster, {closed[-1]} is closed to other users")


def _end(layout: Layout, daemons: Iterable[ProcessId]) -> None:
    """End what runs: explsched while Slurm answers it, Slurm so that no job starts, the jobs, munged last."""
    recorded = tuple(daemons)
    # Before the daemons go: afterwards their children have no parent to be known by.
    known = machine.members(layout.root, layout.cluster_name, recorded)
    machine.stop([daemon for daemon in recorded if daemon.name == DAEMON])
    machine.stop([daemon for daemon in recorded if daemon.name.startswith("slurm")])
    background = [daemon for daemon in recorded if not daemon.name.startswith("slurm")]
    machine.stop(background)
    machine.kill_members(layout.root, layout.cluster_name, known)


def _remove(layout: Layout) -> None:
    """Remove what a cluster makes, and nothing that a user put beside it. The record goes last."""
    for part in layout.PARTS:
        path = layout.root / part
        if path.exists():
            shutil.rmtree(path)
    for draft in drafts(layout.state):
        draft.unlink(missing_ok=True)
    layout.state.unlink()
