"""MPS that slurmd's prolog and epilog start and end: one daemon for all jobs of a user on the same GPUs."""

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.wrappers.gpu_node import GpuNode, gpu_node
from wrappers import mps, node_mps
from wrappers.spanning import SPANNING


@pytest.fixture
def node() -> Iterator[GpuNode]:
    with gpu_node() as made:
        yield made


@pytest.fixture
def mounts() -> None:
    """File systems can be mounted, as by root, but not in every container."""
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"needs a mount namespace: {tried.stderr.strip()}")


def variables(node: GpuNode, job: int, gpus: str = "3") -> dict[str, str]:
    return {
        "EXPLSCHED_NODE_MPS": str(node.directory / "node"),
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_UID": str(os.geteuid()),
        "SLURM_JOB_GPUS": gpus,
    }


def slurmd(node: GpuNode, action: str, job: int, *options: str, umask: int = 0o022, **other: str) -> str:
    """Run the prolog or epilog; what it says. It never fails."""
    done = subprocess.run(
        [sys.executable, "-I", "-m", "wrappers.node_mps", action, *options],
        env={**node.environment, **variables(node, job), **other},
        umask=umask,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stderr


def room(node: GpuNode) -> node_mps.ServerPlace:
    found = node_mps.place(variables(node, 1), os.geteuid())
    assert found is not None
    return found


def daemon(node: GpuNode) -> int:
    return int((room(node).pipes / "nvidia-cuda-mps-control.pid").read_text())


def runs(node: GpuNode) -> bool:
    return bool(mps.answering(room(node).variables()))


def test_the_first_job_starts_it_and_the_last_ends_it(node: GpuNode) -> None:
    assert slurmd(node, "prolog", 1) == ""
    first = daemon(node)
    assert slurmd(node, "prolog", 2) == ""
    assert daemon(node) == first
    assert slurmd(node, "epilog", 1) == ""
    assert runs(node)
    assert slurmd(node, "epilog", 2) == ""
    assert not runs(node)


def test_it_sees_the_gpus_of_the_jobs_and_is_its_users_alone(node: GpuNode) -> None:
    assert slurmd(node, "prolog", 1, SLURM_JOB_GPUS="3,5") == ""
    where = node_mps.place(variables(node, 1, "3,5"), os.geteuid())
    assert where is not None
    pid = int((where.pipes / "nvidia-cuda-mps-control.pid").read_text())
    assert b"CUDA_VISIBLE_DEVICES=3,5\0" in Path(f"/proc/{pid}/environ").read_bytes()
    os.kill(pid, signal.SIGKILL)
    assert stat.S_IMODE(where.pipes.stat().st_mode) == 0o700
    assert where.pipes.stat().st_uid == os.geteuid()
    assert not runs(node)  # that of other GPUs is another one


@pytest.mark.parametrize("umask", [0, 0o077])
def test_whatever_slurmds_umask_all_may_look_and_only_root_may_write(node: GpuNode, umask: int) -> None:
    assert slurmd(node, "prolog", 1, ALL, umask=umask) == ""
    where = node_mps.place(variables(node, 1), None)
    assert where is not None
    for path in (where.directory.parent, where.directory, where.jobs, where.pipes):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
    slurmd(node, "epilog", 1, ALL)


def test_one_that_was_killed_is_started_with_the_next_job(node: GpuNode) -> None:
    slurmd(node, "prolog", 1)
    first = daemon(node)
    os.kill(first, signal.SIGKILL)
    (room(node).pipes / "control").unlink()  # the real one removes it, or its next start does
    assert slurmd(node, "prolog", 2) == ""
    assert daemon(node) != first
    slurmd(node, "epilog", 1)
    assert runs(node)
    slurmd(node, "epilog", 2)
    assert not runs(node)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("put", [fifo, endless])
def test_what_a_user_puts_into_his_directory_holds_up_no_node(node: GpuNode, put: Callable[[Path], None]) -> None:
    """Slurmd's prolog looks there as root."""
    slurmd(node, "prolog", 1)
    told, first = room(node).pipes / "nvidia-cuda-mps-control.pid", daemon(node)
    told.unlink()
    put(told)
    try:
        assert slurmd(node, "prolog", 2) == ""
    finally:
        os.kill(first, signal.SIGKILL)


# Locks all that its user may read below a directory, says so, and keeps it until its input ends.
_HOLDER = """
import fcntl, os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held = []
for at, _, names in os.walk(sys.argv[1]):
    for path in (at, *(os.path.join(at, name) for name in names)):
        try:
            held.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except PermissionError:
            continue
        fcntl.flock(held[-1], fcntl.LOCK_SH)
print(len(held), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_can_hold_up_no_prolog_or_epilog(node: GpuNode) -> None:
    slurmd(node, "prolog", 1)
    node.directory.chmod(0o755)
    command = [sys.executable, "-c", _HOLDER, str(node.directory / "node")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert int(holder.stdout.readline()) > 0
        assert slurmd(node, "prolog", 2) == ""
        assert slurmd(node, "epilog", 1) == ""
        assert slurmd(node, "epilog", 2) == ""
        holder.communicate()
    assert not runs(node)


_LIMITED = """
import sys
from wrappers import node_mps
_, action, limit, limit_s = sys.argv
setattr(node_mps, limit, float(limit_s))
sys.argv[1:] = [action]
sys.exit(node_mps.main())
"""


def limited(node: GpuNode, action: str, limit: str, limit_s: str, *within: str) -> str:
    """What the prolog or epilog says with a shorter limit, before its output is closed, as slurmd waits for that."""
    done = subprocess.run(
        [*within, sys.executable, "-c", _LIMITED, action, limit, limit_s],
        env={**node.environment, **variables(node, 1)},
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return done.stderr


def test_slurmd_does_not_wait_for_ever_for_another_one(node: GpuNode) -> None:
    slurmd(node, "prolog", 1)
    [path] = room(node).directory.glob("*lock")
    with path.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for action in ("prolog", "epilog"):
            assert f"{path} is still locked" in limited(node, action, "TURN_S", "0.1")
    slurmd(node, "prolog", 2)
    slurmd(node, "epilog", 2)  # is the last: the mark of the other job went without the lock
    assert not runs(node)


# A file system that takes all requests and answers none but the first (INIT), as a user's may: nobody can kill what
# waits for it.
_SILENT = """
import ctypes, os, struct, sys
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
assert ctypes.CDLL(None).mount(b"silent", sys.argv[1].encode(), b"fuse", 0, options.encode()) == 0
request = os.read(device, 1 << 17)
number, = struct.unpack_from("=Q", request, 8)
os.write(device, struct.pack("=IiQIIIIHHI40x", 80, 0, number, 7, 31, 0, 0, 12, 10, 4096))
print("mounted", flush=True)
while True:
    os.read(device, 1 << 17)
"""


@pytest.mark.usefixtures("mounts")
@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="no FUSE")
@pytest.mark.parametrize("action", ["prolog", "epilog"])
def test_a_file_system_that_does_not_answer_holds_up_no_node(node: GpuNode, action: str) -> None:
    slurmd(node, "prolog", 1)
    mounting = ["unshare", "--mount", sys.executable, "-c", _SILENT, str(room(node).pipes)]
    with subprocess.Popen(mounting, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == "mounted\n"
            there = ("nsenter", f"--mount=/proc/{server.pid}/ns/mnt")
            script = ("sh", "-c", 'exec "$@" 3>&1', "sh")  # that is slurmd's Prolog, with a descriptor of its own
            assert "not done after 1 s" in limited(node, action, "LIMIT_S", "1", *script, *there)
        finally:
            server.kill()
    assert slurmd(node, "epilog", 1) == ""
    assert not runs(node)


def test_a_fault_is_told_and_takes_no_node_out_of_service(node: GpuNode) -> None:
    nothing = node.directory / "nothing"
    nothing.mkdir()
    assert "nvidia-cuda-mps-control" in slurmd(node, "prolog", 1, PATH=str(nothing))
    assert "nobody-at-all" in slurmd(node, "prolog", 1, SLURM_JOB_UID="nobody-at-all")
    assert slurmd(node, "prolog", 1, SLURM_JOB_GPUS="") == ""
    assert not runs(node)


@pytest.mark.parametrize(("said", "told"), [("echo no device >&2", "no device"), ("", "no message")])
def test_what_a_failed_start_says_is_told(node: GpuNode, said: str, told: str) -> None:
    """And where CUDA's own log is, which mostly has the reason."""
    (node.directory / "bin/nvidia-cuda-mps-control").write_text(f"#!/bin/sh\n{said}\nexit 1\n")
    expected = f"nvidia-cuda-mps-control -d ends with status 1: {told}; see {room(node).directory}/log"
    assert expected in slurmd(node, "prolog", 1)
    assert not runs(node)


def test_sxrun_uses_it_and_leaves_it_to_the_others(node: GpuNode) -> None:
    slurmd(node, "prolog", 7)
    try:
        job = variables(node, 7) | {"CUDA_VISIBLE_DEVICES": "3", "SLURM_SHARDS_ON_NODE": "1"}
        done = node.sxrun("--share", "best-effort", "--mps", "--", "env", **job)
        given = done.variables()
        assert (done.status, done.err) == (0, "")
        assert given["CUDA_MPS_PIPE_DIRECTORY"] == str(room(node).pipes)
        assert given["CUDA_VISIBLE_DEVICES"] == "0"  # the daemon numbers its GPUs from 0
        assert runs(node)
    finally:
        slurmd(node, "epilog", 7)
    assert not runs(node)
    assert "CUDA_MPS_PIPE_DIRECTORY" not in node.sxrun("--share", "best-effort", "--", "env", **job).variables()


@pytest.mark.parametrize(
    ("seen", "given"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3,5"}, "0,1"),
        ({"CUDA_VISIBLE_DEVICES": "5,3"}, "1,0"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "0,1"),  # a cgroup constrains devices
        ({"CUDA_VISIBLE_DEVICES": "GPU-5f1"}, "GPU-5f1"),
        ({"CUDA_VISIBLE_DEVICES": "5"}, None),  # of the two, the daemon's 1
        ({"CUDA_VISIBLE_DEVICES": "1"}, None),
        ({"SLURM_STEP_GPUS": "5", "CUDA_VISIBLE_DEVICES": "0"}, None),
    ],
)
def test_a_command_that_sees_some_of_its_gpus_is_kept_off_it(
    node: GpuNode, seen: dict[str, str], given: str | None
) -> None:
    """It numbers its GPUs from 0 on: the only one that a command sees would be the first of them."""
    gpus = {"SLURM_JOB_GPUS": "3,5"}
    slurmd(node, "prolog", 7, **gpus)
    try:
        found = node_mps.of_job(variables(node, 7) | gpus | seen)
        assert (seen | found)["CUDA_VISIBLE_DEVICES"] == (given or seen["CUDA_VISIBLE_DEVICES"])
        assert ("CUDA_MPS_PIPE_DIRECTORY" in found) == (given is not None)
    finally:
        slurmd(node, "epilog", 7, **gpus)


@pytest.mark.parametrize(
    "given",
    [
        {"SLURM_STEP_GPUS": "3"},  # srun, or a step in salloc
        {"SLURM_JOB_GPUS": "0", "SLURM_STEP_GPUS": "3"},  # on the second node; another job has GPU 0 there
    ],
)
def test_steps_find_the_one_that_their_job_has_on_this_node(node: GpuNode, given: dict[str, str]) -> None:
    slurmd(node, "prolog", 7)
    slurmd(node, "prolog", 8, SLURM_JOB_GPUS="0")
    try:
        step = {name: value for name, value in variables(node, 7).items() if name != "SLURM_JOB_GPUS"}
        found = node_mps.of_job(step | {"CUDA_VISIBLE_DEVICES": "3"} | given)
        assert found["CUDA_MPS_PIPE_DIRECTORY"] == str(room(node).pipes)
    finally:
        slurmd(node, "epilog", 7)
        slurmd(node, "epilog", 8, SLURM_JOB_GPUS="0")


@pytest.mark.parametrize("of_first", ["5", None])  # on this node, or elsewhere
def test_steps_of_a_heterogeneous_job_find_their_own_components(node: GpuNode, of_first: str | None) -> None:
    """Slurm tells all of them the id of the first component, and the batch script's SLURM_JOB_GPUS."""
    slurmd(node, "prolog", 8)
    if of_first:
        slurmd(node, "prolog", 7, SLURM_JOB_GPUS=of_first)
    try:
        components = {"SLURM_JOB_ID_HET_GROUP_0": "7", "SLURM_JOB_ID_HET_GROUP_1": "8"}
        step = variables(node, 7, "5") | components | {"SLURM_STEP_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"}
        assert node_mps.of_job(step)["CUDA_MPS_PIPE_DIRECTORY"] == str(room(node).pipes)
        assert node_mps.of_job(step | {"SLURM_STEP_GPUS": "4"}) == {}  # of others
    finally:
        slurmd(node, "epilog", 8)
        if of_first:
            slurmd(node, "epilog", 7, SLURM_JOB_GPUS=of_first)


ALL = "--all-users"


def test_roots_serves_the_jobs_of_all_users_until_the_last_leaves(node: GpuNode) -> None:
    assert slurmd(node, "prolog", 1, ALL, SLURM_JOB_UID="1") == ""
    where = node_mps.place(variables(node, 1), None)
    assert where is not None
    assert (where.pipes / "arguments").read_text() == "-d -multiuser-server\n"
    first = (where.pipes / "nvidia-cuda-mps-control.pid").read_text()
    assert slurmd(node, "prolog", 2, ALL) == ""
    assert (where.pipes / "nvidia-cuda-mps-control.pid").read_text() == first
    assert stat.S_IMODE(where.pipes.stat().st_mode) == 0o755
    assert slurmd(node, "epilog", 1, ALL, SLURM_JOB_UID="1") == ""
    job = variables(node, 2) | {"CUDA_VISIBLE_DEVICES": "3"}
    given = node.sxrun("--share", "high", "--mps", "--", "env", **job).variables()
    assert (given["CUDA_MPS_PIPE_DIRECTORY"], given["CUDA_VISIBLE_DEVICES"]) == (str(where.pipes), "0")
    assert slurmd(node, "epilog", 2, ALL) == ""
    assert not mps.answering(where.variables())


def test_of_all_users_commands_that_span_gpus_one_uses_roots(node: GpuNode) -> None:
    gpus = {"SLURM_JOB_GPUS": "3,5", "CUDA_VISIBLE_DEVICES": "3,5"}
    slurmd(node, "prolog", 1, ALL, **gpus)
    try:
        job = variables(node, 1) | gpus
        lock = node.directory / "node/all-3-5/mps" / SPANNING
        assert stat.S_IMODE(lock.stat().st_mode) == 0o666
        first = node.start("--mps", "--", "sh", "-c", "echo; read -r _", **job)
        assert first.stdout is not None
        first.stdout.readline()
        slurmd(node, "prolog", 2, ALL, **gpus)
        second = node.sxrun("--mps", "--", "env", **job | {"SLURM_JOB_ID": "2"})
        assert "no CUDA MPS for this command" in second.err
        assert second.variables()["CUDA_MPS_PIPE_DIRECTORY"].endswith("/no-mps")
        first.communicate("\n")
        third = node.sxrun("--mps", "--", "env", **job)
        assert third.variables()["CUDA_MPS_PIPE_DIRECTORY"] == str(lock.parent)
        with lock.open() as held:  # by somebody who means no good
            fcntl.flock(held, fcntl.LOCK_EX)
            assert "no CUDA MPS for this command" in node.sxrun("--mps", "--", "true", **job).err
    finally:
        for each in (1, 2):
            slurmd(node, "epilog", each, ALL, **gpus)


@pytest.mark.usefixtures("mounts")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_daemon_of_roots_is_found_where_proc_hides_it(node: GpuNode) -> None:
    slurmd(node, "prolog", 1, ALL)
    where = node_mps.place(variables(node, 1), None)
    assert where is not None
    node.directory.chmod(0o755)
    look = "import os; from pathlib import Path; from wrappers import mps; "
    look += "os.setgroups([]); os.setgid(65534); os.setuid(65534); "
    look += f"print(mps.answering({where.variables()!r}) is not None, Path('/proc/{os.getpid()}').exists())"
    hide = f'mount -t proc -o hidepid=2 proc /proc && exec "{sys.executable}" -c "{look}"'
    try:
        done = subprocess.run(["unshare", "--mount", "sh", "-c", hide], capture_output=True, text=True, check=False)
        assert done.stdout == "True False\n", done.stderr
    finally:
        slurmd(node, "epilog", 1, ALL)
