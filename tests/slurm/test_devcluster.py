"""The private cluster: starts, serves jobs, survives crashes, leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from explsched.process import ProcessId
from slurm_plugin import sighting
from slurm_plugin.cli.cluster import cluster as command
from slurm_plugin.client.capabilities import SEVERAL_SLURMD
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import (
    Cluster,
    ClusterHealth,
    ClusterSpec,
    DevClusterError,
    Product,
    down,
    load,
    machine,
    up,
)

pytestmark = pytest.mark.slurm

SMALL = ClusterSpec(nodes=1, gpus_per_node=2, shards_per_node=4)
WAIT_S = 30.0


def run(cluster: Cluster, *argv: str, user: str | None = None) -> str:
    """Run a command against a cluster and return what it prints."""
    switch = ("runuser", "-u", user, "--") if user else ()
    environment = {**os.environ, **cluster.env()}
    done = subprocess.run(
        [*switch, *argv], capture_output=True, text=True, env=environment, cwd="/", timeout=60, check=False
    )
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout.strip()


def eventually(what: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline_s, "did not come about in time"
        time.sleep(0.1)


def job_state(cluster: Cluster, job: str) -> str:
    return run(cluster, "squeue", "-h", "-j", job, "-o", "%T")


def belongs(directory: Path) -> frozenset[ProcessId]:
    layout = load(directory).layout
    return machine.members(layout.root, layout.cluster_name)


def invoke(*args: str) -> Result:
    return CliRunner().invoke(command, args)


def _own_address() -> str:
    return socket.gethostbyname(socket.gethostname())


def _listening_addresses(cluster: Cluster) -> set[str]:
    """Where processes of the cluster accept TCP connections; /proc/net/tcp has addresses as numbers in host order."""
    inodes = set()
    for daemon in cluster.daemons:
        for handle in Path(f"/proc/{daemon.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if (target := str(handle.readlink())).startswith("socket:["):
                    inodes.add(target[len("socket:[") : -1])
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:  # state LISTEN
                raw = bytes.fromhex(fields[1].partition(":")[0])
                addresses.add(socket.inet_ntoa(raw[::-1]) if table == "tcp" else f"IPv6 {raw.hex()}")
    return addresses


class TestJobs:
    def test_nodes_are_idle_with_their_gres(self, cluster: Cluster) -> None:
        lines = run(cluster, "sinfo", "-h", "-N", "-O", "NodeList:10,StateLong:10,Gres:30,CPUs:6").splitlines()
        assert [line.split()[:1] + line.split()[2:] for line in lines] == [
            [f"n{i}", "gpu:8,shard:32", "16"] for i in range(1, 5)
        ]

    def test_srun_gets_its_own_gpus(self, cluster: Cluster) -> None:
        assert run(cluster, "srun", "--gres=gpu:3", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES") == "0,1,2"
        held = run(cluster, "sbatch", "--parsable", "-w", "n2", "--gres=gpu:2", "-o", "/dev/null", "--wrap", "sleep 60")
        eventually(lambda: job_state(cluster, held) == "RUNNING")
        assert run(cluster, "srun", "-w", "n2", "--gres=gpu:2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES") == "2,3"
        run(cluster, "scancel", held)

    def test_srun_spans_nodes(self, cluster: Cluster) -> None:
        found = CliClient(environment=cluster.env()).capabilities()
        if not found.has(SEVERAL_SLURMD):
            pytest.skip(f"this Slurm {found.version} was built without --enable-multiple-slurmd")
        names = run(cluster, "srun", "-N", "4", "--gres=gpu:8", "sh", "-c", "echo $SLURMD_NODENAME")
        assert sorted(names.split()) == ["n1", "n2", "n3", "n4"]

    def test_shards_of_two_jobs_share_a_gpu(self, cluster: Cluster) -> None:
        shards = ("-w", "n3", "--gres=shard:2")
        held = run(cluster, "sbatch", "--parsable", *shards, "-o", "/dev/null", "--wrap", "sleep 60")
        eventually(lambda: job_state(cluster, held) == "RUNNING")
        script = "echo $CUDA_VISIBLE_DEVICES $SLURM_SHARDS_ON_NODE"
        assert run(cluster, "srun", *shards, "sh", "-c", script) == "0 2"
        run(cluster, "scancel", held)

    def test_a_job_without_mem_leaves_room_for_others(self, cluster: Cluster) -> None:
        argv = ("-w", "n4", "--parsable", "-o", "/dev/null", "--wrap", "sleep 60")
        jobs = [run(cluster, "sbatch", *argv) for _ in range(2)]
        eventually(lambda: all(job_state(cluster, job) == "RUNNING" for job in jobs))
        run(cluster, "scancel", *jobs)

    def test_ordinary_user(self, cluster: Cluster) -> None:
        script = "id -un; echo $CUDA_VISIBLE_DEVICES; head -c0 $0/gpu/nvidia0 && echo readable"
        shown = run(cluster, "srun", "--gres=gpu:1", "sh", "-c", script, str(cluster.layout.root), user="nobody")
        user, device, access = shown.split()
        assert (user, device.isdigit(), access) == ("nobody", True, "readable")

    @pytest.mark.skipif(_own_address() != "127.0.0.1", reason="Slurm listens where the host's name points to")
    def test_nobody_outside_can_connect(self, cluster: Cluster) -> None:
        assert _listening_addresses(cluster) == {"127.0.0.1"}

    def test_secrets_are_closed_to_ordinary_users(self, cluster: Cluster) -> None:
        assert (cluster.layout.root / "munge" / "munge.key").stat().st_mode & 0o077 == 0


class TestUpAndDown:
    def test_two_side_by_side(self, place: Path) -> None:
        first, second = (up(SMALL, place / name) for name in "ab")
        job = run(first, "sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 300")
        other = run(second, "sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 300")
        for one, its_job in ((first, job), (second, other)):
            eventually(lambda one=one, its_job=its_job: job_state(one, its_job) == "RUNNING")  # type: ignore[misc]
        down(place / "a")
        assert not (place / "a").exists()
        assert second.state is ClusterHealth.RUNNING
        assert job_state(second, other) == "RUNNING"

    def test_down_ends_jobs_of_killed_daemons(self, place: Path) -> None:
        cluster = up(SMALL, place)
        # One process within the job's tree, and one that left it.
        script = "setsid sleep 301 & sleep 302"
        job = run(cluster, "sbatch", "--parsable", "-o", "/dev/null", "--wrap", script)
        eventually(lambda: job_state(cluster, job) == "RUNNING")
        eventually(lambda: sum(process.name == "sleep" for process in belongs(place)) == 2)
        before = belongs(place)
        for daemon in cluster.daemons:
            os.kill(daemon.pid, signal.SIGKILL)
        eventually(lambda: cluster.state is ClusterHealth.STALE)
        assert any(process.name.startswith("slurmstepd") and process.is_alive() for process in before)
        down(place)
        assert [process for process in before if process.is_alive()] == []

    def test_degraded_is_shown_and_not_overwritten(self, place: Path) -> None:
        cluster = up(SMALL, place)
        ctld = next(daemon for daemon in cluster.daemons if daemon.name == "slurmctld")
        os.kill(ctld.pid, signal.SIGKILL)
        eventually(lambda: cluster.state is ClusterHealth.DEGRADED)
        assert [daemon.name for daemon in cluster.status().dead] == ["slurmctld"]
        with pytest.raises(DevClusterError, match="a cluster is degraded here; end it with `down` first"):
            up(SMALL, place)
        assert "slurmctld  dead" in invoke("status", "--dir", str(place)).output

    def test_killed_parent_leaves_a_cluster_that_can_be_found(self, place: Path) -> None:
        # Killed in the middle of `up`, right after the first daemon has been started.
        code = (
            "import os, pathlib, sys\n"
            "from slurm_plugin.devcluster import ClusterSpec, up\n"
            "up(ClusterSpec(1, 1, 1), pathlib.Path(sys.argv[1]), "
            "lambda line: os.kill(os.getpid(), 9) if 'slurmctld' in line else None)\n"
        )
        root = Path(__file__).parents[2]
        done = subprocess.run([sys.executable, "-c", code, str(place)], cwd=root, check=False)
        assert done.returncode == -signal.SIGKILL
        assert [process.name for process in belongs(place)] == ["munged"]
        munged = next(iter(belongs(place)))
        down(place)
        assert not munged.is_alive()

    def test_stale_directory_is_replaced(self, place: Path) -> None:
        first = up(SMALL, place)
        machine.stop(first.daemons)
        (place / "slurm-1.out").write_text("a user's file")
        status = invoke("status", "--dir", str(place))
        assert (status.exit_code, "stale" in status.output) == (1, True)
        lines: list[str] = []
        second = up(SMALL, place, lines.append)
        assert lines[0] == "removing a stale cluster"
        assert run(second, "srun", "hostname")
        down(place)
        assert [path.name for path in place.iterdir()] == ["slurm-1.out"]

    def test_recycled_pid_is_not_ended(self, place: Path) -> None:
        cluster = up(SMALL, place)
        machine.stop(cluster.daemons)
        bystander = subprocess.Popen(
            ["sleep", "300"]
        )  # no sooner: what started in the same clock tick is not told apart
        try:
            record = json.loads(cluster.layout.state.read_text())
            record["daemons"][0]["pid"] = bystander.pid
            cluster.layout.state.write_text(json.dumps(record))
            assert load(place).state is ClusterHealth.STALE
            down(place)
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()

    def test_failed_start_leaves_nothing_running_and_shows_the_log(self, place: Path) -> None:
        spec = ClusterSpec(1, 1, 1, extra=(("SelectType", "select/nonsense"),))
        with pytest.raises(DevClusterError, match=r"slurmctld ended(.|\n)*nonsense"):
            up(spec, place)
        assert belongs(place) == frozenset()
        assert load(place).state is ClusterHealth.STALE

    def test_settings_win_whatever_their_case_and_partitions_add_up(self, place: Path) -> None:
        extra = (("minjobage", "77"), ("MinJobAge", "78"), ("PartitionName", "low Nodes=ALL"))
        cluster = up(ClusterSpec(1, 1, 1, extra=extra), place)
        assert "MinJobAge               = 78 sec" in run(cluster, "scontrol", "show", "config")
        assert run(cluster, "sinfo", "-h", "-o", "%P").split() == ["main*", "low"]

    def test_whole_nodes_for_every_job(self, place: Path) -> None:
        cluster = up(ClusterSpec(1, 2, 0, extra=(("selecttype", "select/linear"),)), place)
        assert "SelectTypeParameters    = CR_MEMORY" in run(cluster, "scontrol", "show", "config")
        assert run(cluster, "srun", "hostname")

    def test_a_file_that_is_included(self, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        where = ("--dir", str(place))
        missing = invoke("up", *where, "--set", "Include=more.conf")
        assert f"{tmp_path}/more.conf: No such file or directory" in str(missing.exception)
        (tmp_path / "more.conf").write_text("MinJobAge=79\n clustername = other\n")
        assert "sets ClusterName" in str(invoke("up", *where, "--set", "Include=more.conf").exception)
        (tmp_path / "more.conf").write_text("MinJobAge=79\n")
        shape = ("--nodes", "1", "--gpus", "1", "--shards", "0", "--slurm-only")
        assert invoke("up", *where, *shape, "--set", "Include=more.conf").exit_code == 0
        assert "MinJobAge               = 79 sec" in run(load(place), "scontrol", "show", "config")


def test_jobs_are_told_a_spool_in_a_directory_with_any_name(place: Path) -> None:
    product = Product(place / "a$HOME`id`")
    product.install()
    done = subprocess.run([product.task_prolog], env={"HOME": "/root"}, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"export {name}={value}" for name, value in product.env().items()]


class TestRefusals:
    def test_foreign_directory(self, place: Path) -> None:
        (place / "thesis.tex").touch()
        with pytest.raises(DevClusterError, match="is not empty and holds no cluster"):
            up(SMALL, place)
        with pytest.raises(DevClusterError, match="no cluster lies here"):
            down(place)
        assert (place / "thesis.tex").exists()

    def test_already_running(self, cluster: Cluster) -> None:
        with pytest.raises(DevClusterError, match="a cluster is running here"):
            up(SMALL, cluster.layout.root)
        assert cluster.state is ClusterHealth.RUNNING

    @pytest.mark.parametrize("name", ["a b", "a#b", "a=b", "a%n", "a\x1b", "a\udcff"])
    def test_a_path_that_slurms_files_cannot_name(self, place: Path, name: str) -> None:
        with pytest.raises(DevClusterError, match="Slurm's files cannot name a path with"):
            up(SMALL, place / name)
        assert not (place / name).exists()

    def test_a_directory_that_cannot_be_made(self) -> None:
        with pytest.raises(DevClusterError, match="/proc/nowhere/c: cannot be made"):
            up(SMALL, Path("/proc/nowhere/c"))

    @pytest.mark.parametrize("key", ["ClusterName", "clustername"])
    def test_a_name_by_which_its_jobs_would_not_be_known(self, key: str) -> None:
        with pytest.raises(DevClusterError, match="ClusterName cannot be set"):
            ClusterSpec(1, 1, 1, extra=((key, "foo"),))

    def test_a_full_disk_is_named(self, place: Path) -> None:
        argv = ["mount", "-t", "tmpfs", "-o", "size=8k", "none", place]
        if subprocess.run(argv, check=False).returncode:
            pytest.skip("mount is not permitted")
        try:
            with pytest.raises(DevClusterError, match=f"{place}/c: No space left on device"):
                up(SMALL, place / "c")
            down(place / "c")
        finally:
            subprocess.run(["umount", place], check=True)

    def test_path_too_long_for_sockets(self, place: Path) -> None:
        with pytest.raises(DevClusterError, match="bytes too long for a unix socket"):
            up(SMALL, place / ("d" * 100))

    def test_missing_program_names_the_package(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "search_path", lambda _prefix: str(place))
        with pytest.raises(DevClusterError, match="apt-get install munge slurm-client slurmctld slurmd"):
            up(SMALL, place / "c")

    def test_ordinary_user_is_told_why(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(DevClusterError, match=r"must be root, is uid 1000: .*mknod"):
            up(SMALL, place)

    def test_mknod_not_permitted(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_args: object, **_named: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "mknod", refuse)
        with pytest.raises(DevClusterError, match=r"mknod is not permitted .*CAP_MKNOD"):
            up(SMALL, place)

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ({"nodes": 0}, "nodes is 0, accepted are 1 to 64"),
            ({"gpus_per_node": 3, "shards_per_node": 4}, "multiple of gpus_per_node"),
            ({"extra": (("SelectType", "select/linear"),)}, "with SelectType=select/linear it must be 0"),
        ],
    )
    def test_spec(self, spec: dict[str, Any], message: str) -> None:
        with pytest.raises(DevClusterError, match=message):
            ClusterSpec(**spec)


class TestCommandLine:
    def test_up_status_env_down(self, place: Path) -> None:
        where = ("--dir", str(place))
        shape = ("--nodes", "1", "--gpus", "1", "--shards", "0", "--set", "MinJobAge=9")
        started = invoke("up", *where, *shape, "--slurm-only", "--json")
        assert started.exit_code == 0, started.output
        assert json.loads(started.stdout)["state"] == "running"
        assert "starting slurmctld" in started.stderr
        status = json.loads(invoke("status", *where, "--json").stdout)
        assert [daemon["name"] for daemon in status["alive"]] == ["munged", "slurmctld", "slurmd.n1"]
        assert f"export SLURM_CONF={place}/etc/slurm.conf" in invoke("env", *where).stdout.splitlines()
        assert invoke("down", *where).exit_code == 0
        gone = invoke("status", *where)
        assert (gone.exit_code, "no cluster lies here" in str(gone.exception)) == (1, True)

    def test_up_brings_up_the_whole_product(self, place: Path) -> None:
        where = ("--dir", str(place))
        started = invoke("up", *where, "--nodes", "1", "--gpus", "1", "--shards", "0", "--json")
        assert started.exit_code == 0, started.output
        whole = load(place)
        assert whole.product is not None
        assert [daemon["name"] for daemon in json.loads(started.stdout)["alive"]][-1] == "sexplschedd"
        assert all(path.is_relative_to(place) for path in (whole.product.config, whole.product.spool))
        exported = invoke("env", *where).stdout
        for name, value in whole.product.env().items():
            assert f"export {name}={value}\n" in exported
        out = place / "spool" / "out"
        argv = ("sbatch", "--wait", "--export=NIL", f"--output={out}", "--wrap", "echo $EXPLSCHED_SPOOL")
        run(whole, *argv)  # without the environment of the shell it is submitted from
        assert out.read_text() == f"{whole.product.spool}\n"
        out.unlink()
        shown = run(whole, sys.executable, "-m", "explsched.cli", "config", "show")
        assert str(whole.product.spool) in shown
        assert sighting.notice(whole.product.spool, time.time()) is None
        daemon = whole.daemons[-1]
        assert invoke("down", *where).exit_code == 0
        assert not daemon.is_alive()
        assert not place.exists()

    def test_up_without_the_daemon_says_so_in_status(self, place: Path) -> None:
        where = ("--dir", str(place))
        assert invoke("up", *where, "--nodes", "1", "--gpus", "1", "--shards", "0", "--no-daemon").exit_code == 0
        half = load(place)
        assert [daemon.name for daemon in half.daemons] == ["munged", "slurmctld", "slurmd.n1"]
        argv = (sys.executable, "-m", "explsched.cli", "status")
        environment = {**os.environ, **half.env()}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.count("\n") == 1
        assert done.stderr.startswith("sexplsched: no daemon runs ")
        assert done.stderr.count("\n") == 1

    def test_bad_setting_is_a_usage_error(self, tmp_path: Path) -> None:
        assert invoke("up", "--dir", str(tmp_path), "--set", "MinJobAge").exit_code == 2


class TestAccounting:
    @pytest.mark.usefixtures("needs_accounting")
    def test_sacct_shows_gpus(self, place: Path) -> None:
        cluster = up(ClusterSpec(1, 2, 0, accounting=True), place)
        run(cluster, "srun", "--gres=gpu:2", "true", user="daemon")
        query = ("sacct", "-a", "-X", "-n", "-P", "-o", "user,account,state,alloctres")
        eventually(lambda: "COMPLETED" in run(cluster, *query))
        user, account, _state, tres = run(cluster, *query).split("|")
        assert (user, account) == ("daemon", "explsched")
        assert "gres/gpu=2" in tres.split(",")
        # The database runs as root and must not be reachable by anybody else.
        assert (place / "db").stat().st_mode & 0o077 == 0

    @pytest.mark.usefixtures("needs_accounting")
    def test_another_database_keeps_its_temporary_tables(
        self, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A MariaDB that starts removes `#sql-*` in its directory of temporary files, whoever they belong to."""
        table = tmp_path / "#sql-temptable-1-1-1.MAI"
        table.touch()
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        up(ClusterSpec(1, 1, 0, accounting=True), place)
        assert table.exists()


def test_reserved_ports_are_not_given_twice_and_let_a_daemon_listen() -> None:

    with machine.reserved(20) as first, machine.reserved(20) as second:
        assert not set(first) & set(second)
        with socket.socket() as daemon:
            daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            daemon.bind(("", first[0]))
            daemon.listen()
