"""Up and down."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from explsched.atomic_file import drafts
from explsched.process import ProcessId
from slurm_plugin.devcluster import processes
from slurm_plugin.devcluster.cluster import Cluster, State
from slurm_plugin.devcluster.product import DAEMON
from slurm_plugin.devcluster.spec import ClusterSpec, DevClusterError, Layout
from slurm_plugin.devcluster.startup import Progress, Startup

_MOST_SOCKET_PATH = 100  # bytes; sun_path holds 108 and munge appends ".lock"
_LONGEST_SOCKET = "spool/n64/n64_1234567890.4294967291"  # slurmstepd's, one per job step


def up(spec: ClusterSpec, directory: Path, progress: Progress = lambda _line: None) -> Cluster:
    """Start a cluster; returns when every node is idle. A stale cluster in the directory is removed first.

    Raises:
        DevClusterError: it did not come up (nothing is left running, the logs stay), or the directory is in use.

    """
    layout = Layout(directory.resolve())
    _check_root("`up` makes device nodes (mknod) as stand-ins for GPUs, and slurmd starts jobs as their users")
    _make_root(layout)
    with _locked(layout):
        _check_unused(layout, progress)
        _warn_if_closed(layout, progress)
        startup = Startup(spec, layout, progress)
        with ExitStack() as on_failure:
            on_failure.callback(lambda: _end(layout, startup.daemons))
            cluster = startup.run()
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


def _make_root(layout: Layout) -> None:
    longest = len(str(layout.root / _LONGEST_SOCKET).encode())
    if longest > _MOST_SOCKET_PATH:
        raise DevClusterError(
            f"{layout.root}: the path is {longest - _MOST_SOCKET_PATH} bytes too long for a unix socket in it; "
            "choose a shorter one"
        )
    if layout.root.exists():
        if not layout.root.is_dir():
            raise DevClusterError(f"{layout.root}: is not a directory")
        return
    layout.root.mkdir(parents=True)
    layout.root.chmod(0o755)


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
        if state is not State.STALE:
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
    known = processes.members(layout.root, layout.cluster_name, recorded)
    processes.stop([daemon for daemon in recorded if daemon.name == DAEMON])
    processes.stop([daemon for daemon in recorded if daemon.name.startswith("slurm")])
    background = [daemon for daemon in recorded if not daemon.name.startswith("slurm")]
    processes.stop(background)
    processes.kill_members(layout.root, layout.cluster_name, known)


def _remove(layout: Layout) -> None:
    """Remove what a cluster makes, and nothing that a user put beside it. The record goes last."""
    for part in layout.PARTS:
        path = layout.root / part
        if path.exists():
            shutil.rmtree(path)
    for draft in drafts(layout.state):
        draft.unlink(missing_ok=True)
    layout.state.unlink()
