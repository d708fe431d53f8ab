"""sxrun on a GPU node: what the command gets, and what is left when it is over."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slurm_plugin.cli.doctor import sharing
from tests.wrappers.gpu_node import GpuNode, gpu_node
from wrappers import mps, runtime_directory
from wrappers.inherited import with_marked, without_marked
from wrappers.runtime_directory import place
from wrappers.spanning import SPANNING

SHARE = ("--share", "high")
UUIDS = "GPU-0a,GPU-0b"


@pytest.fixture
def node() -> Iterator[GpuNode]:
    with gpu_node() as made:
        yield made


def test_what_a_failed_test_has_started_ends_with_it() -> None:
    with gpu_node() as node:
        running = node.start("sh", "-c", "echo ready; exec sleep 600")
        assert wait_for_line(running) == "ready\n"
    assert running.returncode == 128 + signal.SIGTERM


def test_the_command_gets_what_it_asked_for_and_nothing_is_left(node: GpuNode) -> None:
    arguments = ("--share", "best-effort", "--request", "0.25", "--limit", "0.5", "--mps")
    script = 'env; stat -c %a "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY" "${EXPLSCHED_KM_SOCKET%/*}"'
    done = node.sxrun(*arguments, "--", "sh", "-c", script)
    assert (done.status, done.err) == (0, "")
    given = done.variables()
    [room] = {Path(given["EXPLSCHED_KM_SOCKET"]).parent.parent, Path(given["CUDA_MPS_PIPE_DIRECTORY"]).parent}
    assert room.parent == node.directory / "tmp"
    expected = {
        "LD_PRELOAD": str(node.library),
        "EXPLSCHED_SHARE": "best-effort",
        "EXPLSCHED_REQUEST": "0.25",
        "EXPLSCHED_LIMIT": "0.5",
        "CUDA_MPS_CLIENT_PRIORITY": "1",
    }
    assert {name: given[name] for name in expected} == expected
    assert done.out.splitlines()[-3:] == ["700"] * 3
    assert node.log() == [
        f"-d pipe={room}/mps visible=",
        f"manager starts --dir {room}/km --policy quota --foreground masked 0",
        "manager ends",
        f" pipe={room}/mps visible=",
        "quit",
    ]
    assert node.rooms() == []


def test_of_what_is_open_the_command_inherits_all_but_ours_and_daemons_nothing(node: GpuNode) -> None:
    """They outlive it: who reads to its end what it has written to a pipe would wait for them."""
    reading, writing = os.pipe()
    options = ("--mps", *SHARE, "--measure-stages", "--log-regex", r"(?P<step>\d+)x(?P<loss>\d+)")
    script = 'cat "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"; read -r word'
    running = node.start(*options, "--", "sh", "-c", script, inherited=[writing])
    mps_daemon = int(wait_for_line(running))
    children = {child.name(): child.pid for child in psutil.Process(running.pid).children()}
    shell, manager = children.pop("sh"), children.pop("sexplkmd")
    pipe = str(Path(f"/proc/self/fd/{writing}").readlink())
    os.close(reading)
    os.close(writing)
    assert children == {}
    assert opened(shell).keys() == {0, 1, 2, writing}
    assert opened(shell)[writing] == pipe
    assert pipe not in {*opened(manager).values(), *opened(mps_daemon).values()}
    running.communicate("go on\n")
    assert running.returncode == 0


def opened(pid: int) -> dict[int, str]:
    """What a process has open, by number."""
    return {int(path.name): str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}


def test_a_command_that_asks_for_nothing_gets_nothing(node: GpuNode) -> None:
    done = node.sxrun("--", "env")
    assert (done.status, done.err, node.log(), node.rooms()) == (0, "", [], [])
    assert not {"LD_PRELOAD", "APPTAINER_BIND"} & set(done.variables())


def test_the_environment_asks_too_and_options_count_first(node: GpuNode) -> None:
    variables = {"EXPLSCHED_SHARE": "high", "EXPLSCHED_LIMIT": "0.3", "EXPLSCHED_MPS": "1"}
    given = node.sxrun("--limit", "0.4", "--", "env", **variables).variables()
    assert (given["EXPLSCHED_SHARE"], given["EXPLSCHED_LIMIT"]) == ("high", "0.4")
    assert "CUDA_MPS_PIPE_DIRECTORY" in given
    assert "CUDA_MPS_CLIENT_PRIORITY" not in given


def test_the_mps_daemon_is_started_without_what_the_job_preloads(node: GpuNode) -> None:
    of_daemon = 'tr "\\0" "\\n" < "/proc/$(cat "$CUDA_MPS_PIPE_DIRECTORY"/*.pid)/environ"'
    given = node.sxrun("--mps", "--", "sh", "-c", of_daemon, LD_PRELOAD=str(node.library)).variables()
    assert "CUDA_MPS_PIPE_DIRECTORY" in given
    assert "LD_PRELOAD" not in given


def test_a_container_gets_the_same_and_what_the_user_set_stays(node: GpuNode) -> None:
    spool = node.directory / "spool"
    spool.mkdir()
    set_by_user = {"SINGULARITY_BIND": "/data,/scratch:/mnt", "APPTAINERENV_CUDA_MPS_LOG_DIRECTORY": "/own"}
    given = node.sxrun(*SHARE, "--mps", "--", "env", EXPLSCHED_SPOOL=str(spool), **set_by_user).variables()
    room = place(node.environment)
    needed = [room / "mps", room / "mps-log", spool, room / "km", node.library]
    for name in ("APPTAINER_BIND", "SINGULARITY_BIND"):
        assert given[name].split(",") == ["/data", "/scratch:/mnt", *map(str, needed)]
    assert given["APPTAINERENV_CUDA_MPS_LOG_DIRECTORY"] == "/own"
    for prefix in ("APPTAINERENV_", "SINGULARITYENV_"):
        for name in ("LD_PRELOAD", "EXPLSCHED_SHARE", "EXPLSCHED_KM_SOCKET", "CUDA_MPS_PIPE_DIRECTORY"):
            assert given[prefix + name] == given[name]


def test_an_sxrun_inside_another_sets_its_own_priority_and_the_containers_variables(node: GpuNode) -> None:
    inner = [sys.executable, "-m", "wrappers.sxrun"]
    set_by_user = {"APPTAINERENV_LD_PRELOAD": "", "EXPLSCHED_METRIC": "größe"}
    options = ("--mps", "--share", "best-effort", "--memory", "4G")
    words = [*inner, "--share", "high", "--memory", "20G", "--", "env"]
    given = node.sxrun(*options, "--", *words, CUDA_VISIBLE_DEVICES="1", **set_by_user).variables()
    assert "CUDA_MPS_CLIENT_PRIORITY" not in given
    assert (given["EXPLSCHED_SHARE"], given["EXPLSCHED_MEMORY"]) == ("high", "20480M")
    assert given["APPTAINERENV_LD_PRELOAD"] == ""
    in_container = {name.removeprefix("APPTAINERENV_") for name in given if name.startswith("APPTAINERENV_")}
    assert in_container >= {"EXPLSCHED_MEMORY", "EXPLSCHED_SHARE", "CUDA_MPS_PIPE_DIRECTORY"}
    assert {name for name in in_container if given[f"APPTAINERENV_{name}"] != given.get(name)} == {"LD_PRELOAD"}


def test_a_job_submitted_inside_gets_nothing_for_containers_of_the_outer_one(node: GpuNode) -> None:
    words = [sys.executable, "-m", "wrappers.sxbatch", "--wrap", "true"]
    record = node.directory / "submitted"
    program = node.directory / "bin" / "sbatch"
    program.write_text(f"#!/bin/sh\nenv > {record}\n")
    program.chmod(0o755)
    options = ("--mps", "--share", "best-effort", "--")
    node.sxrun(*options, *words, CUDA_VISIBLE_DEVICES="1,3", APPTAINERENV_MINE="x")
    told = {line.partition("=")[0] for line in record.read_text().splitlines()}
    assert {name for name in told if name.startswith("APPTAINERENV_")} == {"APPTAINERENV_MINE"}
    assert "CUDA_MPS_CLIENT_PRIORITY" not in told


def test_the_output_that_an_sxrun_around_reads_stays_unbuffered(node: GpuNode) -> None:
    node.environment.pop("PYTHONUNBUFFERED", None)
    inner = [sys.executable, "-m", "wrappers.sxrun", "--memory", "20G", "--", "env"]
    given = node.sxrun("--log-regex", r"(?P<step>\d+) (?P<loss>\d)", "--", *inner).variables()
    assert given["PYTHONUNBUFFERED"] == "1"
    assert "PYTHONUNBUFFERED" not in without_marked(given)


def test_what_was_changed_since_is_not_sxruns() -> None:
    ours = {"APPTAINERENV_A": "x\n\udcff&=%", "APPTAINERENV_B": "", "APPTAINERENV_C": "1"}
    assert without_marked({**with_marked({"HOME": "/h"}, ours), "APPTAINERENV_C": "2"}) == {
        "HOME": "/h",
        "APPTAINERENV_C": "2",
    }
    assert without_marked({"HOME": ""}) == {"HOME": ""}


def test_containers_are_asked_to_mount_nothing_that_would_keep_them_from_starting(node: GpuNode) -> None:
    no_mount = str(node.directory / "a,b")
    Path(no_mount).mkdir()
    missing = {"EXPLSCHED_SPOOL": str(node.directory / "missing"), "CUDA_MPS_LOG_DIRECTORY": no_mount}
    given = node.sxrun("--memory", "20G", "--", "env", **missing).variables()
    assert given["APPTAINER_BIND"] == str(node.library)


def test_the_kill_switch(node: GpuNode) -> None:
    done = node.sxrun(*SHARE, "--limit", "0.5", "--", "env", EXPLSCHED_INTERCEPT="off")
    assert (done.status, done.err, node.log()) == (0, "", [])
    assert not {"LD_PRELOAD", "EXPLSCHED_SHARE", "EXPLSCHED_LIMIT"} & set(done.variables())


def test_the_kill_switch_leaves_mps_and_tells_that_memory_is_not_limited(node: GpuNode) -> None:
    done = node.sxrun("--mps", "--memory", "20G", "--", "env", CUDA_VISIBLE_DEVICES="0", EXPLSCHED_INTERCEPT="off")
    assert (done.status, done.err) == (0, "sxrun: memory is not limited: EXPLSCHED_INTERCEPT is off\n")
    given = done.variables()
    assert "CUDA_MPS_PIPE_DIRECTORY" in given
    assert not {"LD_PRELOAD", "EXPLSCHED_MEMORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"} & set(given)
    assert node.sxrun("--memory", "20G", "--", "true", EXPLSCHED_INTERCEPT="OFF").err == done.err


def test_memory_alone_takes_the_interposer_and_no_daemon(node: GpuNode) -> None:
    done = node.sxrun("--memory", "20G", "--", "env", CUDA_VISIBLE_DEVICES="0")
    given = done.variables()
    assert (done.err, node.log(), node.rooms()) == ("", [], [])
    assert (given["LD_PRELOAD"], given["EXPLSCHED_MEMORY"]) == (str(node.library), "20480M")
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in given


@pytest.mark.parametrize(
    ("visible", "limit"),
    [("3,1", "0=20480M,1=20480M"), (UUIDS, "0=20480M,1=20480M"), ("", None)],  # unlisted GPUs cannot be named
)
def test_where_mps_serves_it_limits_memory_too(node: GpuNode, visible: str, limit: str | None) -> None:
    given = node.sxrun("--mps", "--memory", "20G", "--", "env", CUDA_VISIBLE_DEVICES=visible).variables()
    assert given.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") == limit
    assert given["LD_PRELOAD"] == str(node.library)


def test_without_the_interposer_memory_is_not_limited_and_that_is_said(node: GpuNode) -> None:
    done = node.sxrun("--memory", "1G", "--", "true", EXPLSCHED_INTERCEPT_LIBRARY="/nowhere")
    assert done.status == 0
    assert "sxrun: memory is not limited: " in done.err


def test_memory_and_kernels_preload_the_interposer_once(node: GpuNode) -> None:
    given = node.sxrun(*SHARE, "--mps", "--memory", "512M", "--", "env").variables()
    assert (given["LD_PRELOAD"], given["EXPLSCHED_MEMORY"]) == (str(node.library), "512M")


def test_without_mps_it_is_said_what_that_means(node: GpuNode) -> None:
    done = node.sxrun(*SHARE, "--", "true")
    assert "no CUDA MPS serves this command (--mps starts one)" in done.err
    assert "time-sliced" in done.err
    (node.directory / "bin/nvidia-cuda-mps-control").unlink()
    done = node.sxrun(*SHARE, "--mps", "--", "sh", "-c", 'echo "$LD_PRELOAD"; exit 3')
    assert (done.status, done.out) == (3, f"{node.library}\n")
    assert "nvidia-cuda-mps-control is not on PATH" in done.err
    assert "time-sliced" in done.err


def test_what_is_preloaded_already_stays_in_front(node: GpuNode) -> None:
    other = node.directory / "libother.so"
    shutil.copy(node.library, other)
    outer = [*SHARE, "--mps", "--", "env", f"LD_PRELOAD={other} "]
    inner = ["python3", "-m", "wrappers.sxrun", *SHARE, "--mps", "--", "env"]
    assert node.sxrun(*outer, *inner).variables()["LD_PRELOAD"] == f"{other}:{node.library}"
    twice = node.sxrun(*SHARE, "--mps", "--", *inner)
    assert twice.variables()["LD_PRELOAD"] == str(node.library)


def _fault(node: GpuNode, which: str) -> dict[str, str]:
    bad = node.directory / "bad.so"
    if which == "no library":
        return {"EXPLSCHED_INTERCEPT_LIBRARY": "/no/such.so"}
    if which == "no ELF file":
        bad.write_text("no library")
    elif which == "a symbol that nobody has":
        source = node.directory / "bad.c"
        source.write_text("void nobody_has_this(void);\nvoid stand_in(void) { nobody_has_this(); }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", bad, source], check=True)
    elif which == "a colon in its path":
        (node.directory / "a:b").mkdir()
        bad = node.directory / "a:b/bad.so"
        shutil.copy(node.library, bad)
    elif which == "no manager":
        return {"EXPLSCHED_KM": "/no/such"}
    elif which == "a manager that fails":
        return {"STAND_IN_MANAGER_FAULT": "no memory for pages"}
    elif which == "a manager that cannot run":
        bad.write_text("\x7fELF")
        bad.chmod(0o755)
        return {"EXPLSCHED_KM": str(bad)}
    return {"EXPLSCHED_INTERCEPT_LIBRARY": str(bad)}


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("no library", "the interposer is not at /no/such.so"),
        ("no ELF file", "cannot be preloaded"),
        ("a symbol that nobody has", "nobody_has_this"),
        ("a colon in its path", "which LD_PRELOAD cannot hold"),
        ("no manager", "the kernel manager is not at /no/such"),
        ("a manager that fails", "the kernel manager ends with status 1: no memory for pages"),
        ("a manager that cannot run", "Exec format error"),
    ],
)
def test_whatever_is_wrong_the_command_runs(node: GpuNode, which: str, message: str) -> None:
    done = node.sxrun(*SHARE, "--mps", "--", "sh", "-c", "echo ran; env; exit 4", **_fault(node, which))
    assert done.status == 4
    assert done.out.startswith("ran\n")
    assert "LD_PRELOAD" not in done.variables()
    assert "CUDA_MPS_PIPE_DIRECTORY" in done.variables()
    [line] = done.err.splitlines()
    assert line.startswith("sxrun: kernels are not managed: ")
    assert message in line
    assert node.rooms() == []


@pytest.mark.parametrize(
    "variable",
    [
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
        "EXPLSCHED_INTERCEPT_LIBRARY",
        "EXPLSCHED_KM",
        "EXPLSCHED_NODE_MPS",
        "EXPLSCHED_SPOOL",
        "SLURM_TMPDIR",
    ],
)
@pytest.mark.parametrize("asked", [("--memory", "1G"), (*SHARE, "--mps", "--memory", "1G")])
def test_what_is_closed_to_the_user_keeps_no_command_from_running(
    node: GpuNode, variable: str, asked: tuple[str, ...]
) -> None:
    closed = node.directory / "closed"
    closed.mkdir()
    closed.chmod(0)
    without_access = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    inner = [sys.executable, "-m", "wrappers.sxrun", *asked, "--", "sh", "-c", "echo ran; exit 3"]
    variables = {"SLURM_JOB_ID": str(os.getpid()), variable: str(closed / "there")}  # rooms may have to be in /tmp
    done = node.sxrun("--", *without_access, *inner, **variables)
    assert (done.status, done.out) == (3, "ran\n"), done.err


def test_a_number_of_tasks_that_is_none_keeps_no_command_from_running(node: GpuNode) -> None:
    done = node.sxrun("--mps", "--", "sh", "-c", "exit 3", SLURM_STEP_NUM_TASKS="2(x2)")
    assert (done.status, done.err) == (3, "")


def test_mps_that_fails_is_told_with_its_words(node: GpuNode) -> None:
    done = node.sxrun(*SHARE, "--mps", "--", "env", STAND_IN_MPS_FAULT="Failed to start MPS")
    assert "no MPS: " in done.err
    assert "-d ends with status 1: Failed to start MPS" in done.err
    assert "LD_PRELOAD" in done.variables()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in done.variables()
    assert node.rooms() == []


@pytest.mark.parametrize(("visible", "inside"), [("1,3", "0,1"), (UUIDS, UUIDS), ("0", "0"), ("", "")])
def test_gpus_are_numbered_as_the_mps_daemon_sees_them(node: GpuNode, visible: str, inside: str) -> None:
    given = node.sxrun("--mps", "--", "env", CUDA_VISIBLE_DEVICES=visible).variables()
    assert given["CUDA_VISIBLE_DEVICES"] == inside
    assert node.log()[0].endswith(f"visible={visible}")


def test_daemons_that_serve_the_node_are_used_and_left_alone(node: GpuNode) -> None:
    inner = ["python3", "-m", "wrappers.sxrun", *SHARE, "--mps", "--", "env"]
    script = "env; CUDA_VISIBLE_DEVICES=7 exec " + " ".join(inner)  # other GPUs: not the same room
    done = node.sxrun(*SHARE, "--mps", "--", "sh", "-c", script)
    assert (done.status, done.err) == (0, "")
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "EXPLSCHED_KM_SOCKET"):
        assert len({line for line in done.out.splitlines() if line.startswith(name)}) == 1
    assert [line.split(" ")[0] for line in node.log()] == ["-d", "manager", "manager", "", "quit"]


def wait_for_line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline()


def test_the_sxruns_of_a_job_share_daemons_until_the_last_leaves(node: GpuNode) -> None:
    command = (*SHARE, "--mps", "--", "sh", "-c", 'echo "$EXPLSCHED_KM_SOCKET"; read -r line')
    first, second = node.start(*command), node.start(*command)
    assert wait_for_line(first) == wait_for_line(second) != "\n"
    first.communicate("\n")
    assert "manager ends" not in node.log()
    third = node.start(*command)
    assert wait_for_line(third)
    second.communicate("\n")
    assert "manager ends" not in node.log()
    third.communicate("\n")
    assert [line.split(" ")[0] for line in node.log()] == ["-d", "manager", "manager", "", "quit"]
    assert node.rooms() == []


@pytest.mark.parametrize("second_spans", [True, False])
def test_of_commands_on_several_gpus_one_uses_mps(node: GpuNode, *, second_spans: bool) -> None:
    """Collectives of two programs under MPS may deadlock (NVIDIA/nccl issues 231, 574)."""
    step = {"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2"}
    first = node.start("--mps", "--", "sh", "-c", "env; read line", CUDA_VISIBLE_DEVICES="0,1", **step)
    assert first.stdout is not None
    assert any(line.startswith("CUDA_MPS_PIPE_DIRECTORY") for line in first.stdout)
    same_step = node.sxrun("--mps", "--", "env", CUDA_VISIBLE_DEVICES="0,1", **step)
    assert (same_step.err, same_step.variables()["CUDA_MPS_PIPE_DIRECTORY"].endswith("/mps")) == ("", True)
    # One GPU of the node alone is another daemon's, and cannot wait for a second one.
    other = node.sxrun("--mps", "--", "env", CUDA_VISIBLE_DEVICES="0,1" if second_spans else "0")
    assert ("could deadlock" in other.err) is second_spans
    assert other.variables()["CUDA_MPS_PIPE_DIRECTORY"].endswith("/no-mps" if second_spans else "/mps")
    assert other.variables()["CUDA_VISIBLE_DEVICES"] == ("0,1" if second_spans else "0")
    first.communicate("\n")
    later = node.sxrun("--mps", "--", "env", CUDA_VISIBLE_DEVICES="0,1")
    assert (later.err, later.variables()["CUDA_MPS_PIPE_DIRECTORY"].endswith("/mps")) == ("", True)


def test_of_commands_on_several_gpus_all_use_mps_where_they_cannot_be_told_apart(node: GpuNode) -> None:
    pipes = node.directory / "pipes"
    pipes.mkdir()
    (pipes / "control").touch()
    os.mkfifo(pipes / SPANNING)
    named = {mps.PIPE_VARIABLE: str(pipes), "CUDA_VISIBLE_DEVICES": "0,1"}
    done = node.sxrun("--mps", "--", "env", **named)
    assert (done.status, done.err) == (0, "")
    assert done.variables()[mps.PIPE_VARIABLE] == str(pipes)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory away")
def test_a_default_directory_of_another_user_serves_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "control").touch()
    monkeypatch.setattr(mps, "DEFAULT_PIPES", tmp_path)
    assert mps.answering({}) == tmp_path
    os.chown(tmp_path, 1, 1)
    assert mps.answering({}) is None
    assert mps.answering({mps.PIPE_VARIABLE: str(tmp_path)}) == tmp_path


def test_a_limit_that_cannot_hold_is_told(node: GpuNode) -> None:
    first = node.start(*SHARE, "--mps", "--", "sh", "-c", "echo ready; read -r line")
    assert wait_for_line(first) == "ready\n"
    assert "request and limit do not count" in node.sxrun("--limit", "0.5", "--mps", "--", "true").err
    assert node.sxrun("--share", "best-effort", "--mps", "--", "true").err == ""
    first.communicate("\n")
    first = node.start("--limit", "0.5", "--mps", "--", "sh", "-c", "echo ready; read -r line")
    assert wait_for_line(first) == "ready\n"
    assert node.sxrun("--limit", "0.5", "--mps", "--", "true").err == ""
    first.communicate("\n")


def test_one_that_was_killed_counts_as_gone(node: GpuNode) -> None:
    command = (*SHARE, "--mps", "--", "sh", "-c", "echo ready; read -r line")
    first, second = node.start(*command), node.start(*command)
    assert wait_for_line(first) == wait_for_line(second) == "ready\n"
    first.kill()
    first.wait()
    second.communicate("\n")
    first.communicate()
    assert "manager ends" in node.log()
    assert node.log()[-1] == "quit"
    assert node.rooms() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ends_the_command_leaves_nothing(node: GpuNode, number: signal.Signals) -> None:
    running = node.start(*SHARE, "--mps", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert wait_for_line(running) == "ready\n"
    running.send_signal(number)
    running.communicate()
    assert running.returncode == 128 + number
    assert "manager ends" in node.log()
    assert node.log()[-1] == "quit"
    assert node.rooms() == []


def test_signals_for_the_command_end_no_daemon_that_serves_it(node: GpuNode) -> None:
    """Slurm signals all processes of a step: to ask for a checkpoint, and with SIGTERM while one is being saved."""
    running = node.start(*SHARE, "--mps", "--", "sh", "-c", "echo ready; read -r line")
    assert wait_for_line(running) == "ready\n"
    (room,) = node.rooms()
    manager = int((room / "sexplkmd.pid").read_text().split()[0])
    mps = int((room / "mps" / "nvidia-cuda-mps-control.pid").read_text())
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        os.kill(manager, number)
        os.kill(mps, number)
    os.kill(mps, signal.SIGTERM)
    for pid in (manager, mps):
        assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    running.communicate("\n")
    assert running.returncode == 0
    assert "manager ends" in node.log()
    assert node.log()[-1] == "quit"


def test_coming_and_going_at_once(node: GpuNode) -> None:
    probe = (
        "import os, socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        "s.connect(os.environ['EXPLSCHED_KM_SOCKET']); assert os.path.exists(os.environ['CUDA_MPS_PIPE_DIRECTORY'])"
    )
    running = []
    for _ in range(12):
        running.append(node.start(*SHARE, "--mps", "--", "python3", "-c", probe))
        time.sleep(0.05)
    for each in running:
        _, err = each.communicate()
        assert (each.returncode, err) == (0, "")
    words = [line.split(" masked")[0].split(" --")[0] for line in node.log()]
    assert words.count("manager starts") == words.count("manager ends") == words.count("quit") >= 1
    assert node.rooms() == []


SOMEBODY_ELSES = pytest.param(
    "somebody else's", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory away")
)


@pytest.mark.parametrize("trap", ["a directory others may enter", SOMEBODY_ELSES, "a link", "a file"])
def test_a_room_that_is_not_ours_alone_is_not_used(node: GpuNode, trap: str) -> None:
    room = place(node.environment)
    if trap == "a link":
        room.symlink_to(node.directory)
    elif trap == "a file":
        room.write_text("")
    elif trap == "somebody else's":
        room.mkdir(0o700)
        os.chown(room, 1, 1)
    else:
        room.mkdir()
        room.chmod(0o755)
    done = node.sxrun(*SHARE, "--mps", "--", "env")
    assert done.status == 0
    assert done.err == f"sxrun: the GPU is not shared: {room}: is not a directory of this user alone\n"
    assert "LD_PRELOAD" not in done.variables()
    assert room in node.rooms()


def test_a_room_that_was_removed_and_made_anew_meanwhile_is_joined_properly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last user left, and somebody else came, between our opening of the lock and our getting it."""
    waits: list[int] = []
    really = fcntl.flock
    with tempfile.TemporaryDirectory(prefix="sx-") as directory:

        def lock(descriptor: int, operation: int) -> None:
            if not waits:
                shutil.rmtree(Path(directory, "room"))
                Path(directory, "room").mkdir(0o700)
            waits.append(operation)
            really(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", lock)
        room = runtime_directory.RuntimeDirectory(Path(directory, "room"))
        assert waits[:2] == [fcntl.LOCK_EX, fcntl.LOCK_EX]
        with room.locked() as lasting:
            assert lasting
        room.close(lambda: None)
        assert not room.path.exists()


def test_a_directory_too_long_for_sockets_is_not_used() -> None:
    short = place({"SLURM_JOB_ID": "7", "SLURM_TMPDIR": os.sep + "nowhere"})
    assert short.parent == Path("/tmp")  # noqa: S108
    assert short.name.startswith(f"explsched-{os.geteuid()}-7-")
    with tempfile.TemporaryDirectory() as directory:
        deep = Path(directory, "x" * 60)
        deep.mkdir()
        assert place({"SLURM_TMPDIR": str(deep)}).parent == Path("/tmp")  # noqa: S108
        assert place({"SLURM_TMPDIR": directory}).parent == Path(directory)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--share", "low"], "found 'low', accepted: high, best-effort"),
        (["--limit", "1.5"], "found '1.5', accepted: 0.001 to 1"),
        (["--request", "nan"], "found 'nan', accepted: 0.001 to 1"),
        (["--request", "0.5", "--limit", "0.25"], "--request 0.5 is more than --limit 0.25"),
    ],
)
def test_wrong_options_are_refused(node: GpuNode, arguments: list[str], message: str) -> None:
    done = node.sxrun(*arguments, "--", "true")
    assert done.status == 2
    assert message in done.err


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"EXPLSCHED_SHARE": "low"}, "EXPLSCHED_SHARE is ignored: found 'low', accepted: high, best-effort"),
        ({"EXPLSCHED_LIMIT": "50%"}, "EXPLSCHED_LIMIT is ignored: found '50%', accepted: 0.001 to 1"),
        (
            {"EXPLSCHED_REQUEST": "0.5", "EXPLSCHED_LIMIT": "0.3", "EXPLSCHED_MPS": "1"},
            "the request of 0.5 is lowered to the limit of 0.3",
        ),
    ],
)
def test_wrong_variables_are_told_and_the_command_runs(node: GpuNode, variables: dict[str, str], message: str) -> None:
    done = node.sxrun("--", "sh", "-c", "exit 5", **variables)
    assert (done.status, done.err) == (5, f"sxrun: {message}\n")


def test_rooms_are_private(node: GpuNode) -> None:
    script = 'stat -c "%a %n" "$SLURM_TMPDIR"/*; stat -c %a "$SLURM_TMPDIR"/*/start.lock'
    done = node.sxrun("--mps", "--", "sh", "-c", f"umask 0; {script}")
    assert done.out.split()[0] == "700"
    assert done.out.split()[-1] == "600"


def findings(node: GpuNode, **variables: str) -> dict[str, tuple[str, str]]:
    """What `sexplsched doctor` finds: check -> level and words."""
    return {one.check: (one.level, one.found) for one in sharing({**node.environment, **variables})}


def test_doctor_sees_what_sxrun_would_find(node: GpuNode) -> None:
    assert findings(node) == {
        "interposer": ("ok", str(node.library)),
        "kernel manager": ("ok", str(node.directory / "sexplkmd")),
        "CUDA MPS": ("ok", str(node.directory / "bin/nvidia-cuda-mps-control")),
    }
    (node.directory / "bin/nvidia-cuda-mps-control").unlink()
    found = findings(node, EXPLSCHED_INTERCEPT_LIBRARY="/no/such.so", EXPLSCHED_KM="/no/such")
    assert {level for level, _ in found.values()} == {"note"}
    assert "time-sliced" in found["CUDA MPS"][1]
    broken = findings(node, **_fault(node, "no ELF file"))["interposer"]
    assert broken[0] == "note"
    assert "cannot be preloaded" in broken[1]
