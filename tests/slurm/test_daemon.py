"""The daemon on a real cluster: order, leases, preemption, and what happens when any part dies (fail open)."""

import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from explsched import process
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster, ClusterSpec, up
from tests.slurm.jobs import (
    a_daemon,
    command,
    config,
    environment,
    final_state,
    run,
    start_daemon,
    state_of,
    submit,
    until,
)

pytestmark = pytest.mark.slurm


def once(cluster: Cluster, tmp_path: Path, text: str, *more: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "once.yaml"
    path.write_text(text)
    argv = [command("sexplschedd"), "--config", str(path), *(more or ("--once",))]
    return subprocess.run(argv, env=environment(cluster), capture_output=True, text=True, check=False)


def test_once_writes_the_order_and_a_second_pass_changes_nothing(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    full = submit(small, "--nodes=2", "--gpus-per-node=4")
    until(lambda: state_of(client, full) == "RUNNING", "the cluster is full")
    limits = {submit(small, "--gres=gpu:1", f"--time={minutes}"): minutes for minutes in (60, 50, 10, 40, 30, 20)}
    assert once(small, tmp_path, config(spool, "srsf")).returncode == 0
    waiting = [job for job in client.jobs() if job.job_id in limits]
    by_priority = sorted(waiting, key=lambda job: -job.priority)
    assert [limits[job.job_id] for job in by_priority] == [10, 20, 30, 40, 50, 60]
    assert len({job.priority for job in waiting}) == len(waiting)
    dry = once(small, tmp_path, config(spool, "srsf"), "--dry-run")
    assert dry.stdout == "nothing to change\n", dry.stderr


def test_a_gang_without_a_promise_keeps_no_node_idle(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    first = submit(small, "--gpus-per-node=4", "--time=30", script=f"while [ ! -e {go} ]; do sleep 0.1; done")
    second = submit(small, "--gpus-per-node=4", "--time=30")
    until(lambda: [state_of(client, job) for job in (first, second)] == ["RUNNING"] * 2, "the cluster is full")
    gang = submit(small, "--nodes=2", "--gpus-per-node=4", "--time=5")
    long = submit(small, "--gpus-per-node=4", "--time=600")
    assert once(small, tmp_path, config(spool, "srsf")).returncode == 0
    go.touch()
    # Slurm by itself would keep the free node for the gang until the second job's limit.
    until(lambda: state_of(client, long) == "RUNNING", "the long job has taken the free node")
    assert state_of(client, gang) == "PENDING"


def test_dry_run_changes_nothing(small: Cluster, client: CliClient, spool: Path, tmp_path: Path) -> None:
    submit(small, "--nodes=2", "--gpus-per-node=4")
    waiting = submit(small, "--nodes=2", "--gpus-per-node=4")
    told = {("PENDING", "Resources"), ("RUNNING", "None")}
    until(lambda: {(job.state, job.reason) for job in client.jobs()} == told, "one job runs, one waits for room")

    def steering() -> list[tuple[object, ...]]:  # priority and expected start change by themselves
        return [(job.job_id, job.state, job.site_factor, job.reservation) for job in client.jobs()]

    before = steering()
    dry = once(small, tmp_path, config(spool, "fifo"), "--dry-run")
    assert f"explsched_{waiting}" in dry.stdout
    assert client.reservations() == ()
    assert steering() == before


WORK = """
report() {{ printf '{{"time_s": %s, "restart": %d, "step": %d, "metric": "loss", "value": %s}}\\n' \
  "$(date +%s.%N)" "${{SLURM_RESTART_COUNT:-0}}" "$1" "$2" >> {spool}/$SLURM_JOB_ID.jsonl; }}
saved=0
trap 'saved=1' USR1
for step in $(seq 1 {steps}); do
  report "$step" "$(awk "BEGIN {{ print {curve} }}")"
  if [ "$saved" = 1 ]; then
    printf '{{"time_s": %s, "restart": %d, "event": "checkpoint"}}\\n' "$(date +%s.%N)" "${{SLURM_RESTART_COUNT:-0}}" \
      >> {spool}/$SLURM_JOB_ID.jsonl
    saved=0
  fi
  sleep 0.2
done
"""
OPTED_IN = ("--requeue", "--gres=gpu:1", "--comment=explsched:sweep=s&checkpoint=USR1")


def work(spool: Path, steps: int, curve: str) -> str:
    return WORK.format(spool=spool, steps=steps, curve=curve)


QUICK = {"utility": {"quantum_s": 4.0, "objective": "total"}, "preemption": {"grace_s": 10.0, "max_per_hour": 1000}}


def test_a_flat_job_yields_to_an_untried_one_and_comes_back(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    flat = [submit(small, *OPTED_IN, script=work(spool, 100, "2 + 1 / $step")) for _ in range(8)]
    until(lambda: all(state_of(client, job) == "RUNNING" for job in flat), "all GPUs are taken")
    with a_daemon(small, tmp_path, config(spool, **QUICK)):
        untried = submit(small, *OPTED_IN, script=work(spool, 15, "1 / $step"))
        until(lambda: state_of(client, untried) == "RUNNING", "room is made for the untried configuration")
        preempted = [job.job_id for job in client.jobs() if job.restarts]
        assert len(preempted) >= 1
        until(lambda: final_state(small, untried) == "COMPLETED", "it completes")
        until(lambda: all(state_of(client, job) == "RUNNING" for job in preempted), "the preempted ones run again")
    assert "RequeueJob" in (tmp_path / "log").read_text()


def test_jobs_that_did_not_opt_in_are_never_touched(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    options = ("--requeue", "--gres=gpu:1", "--comment=explsched:sweep=s")
    flat = [submit(small, *options, script=work(spool, 40, "2")) for _ in range(8)]
    untried = submit(small, *options, script="true")
    with a_daemon(small, tmp_path, config(spool, **QUICK)):
        until(lambda: final_state(small, untried) == "COMPLETED", "the untried one runs when there is room")
        until(lambda: client.jobs() == (), "all jobs have ended")
    assert [final_state(small, job) for job in flat] == ["COMPLETED"] * 8
    assert "Restarts=0" in run(small, "scontrol", "show", "job", str(flat[0]))


def test_sighup_takes_a_good_file_and_survives_a_bad_one(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with a_daemon(small, tmp_path, config(spool, "fifo")) as daemon:
        until(lambda: log.exists() and " pass " in log.read_text(), "the daemon works")
        (tmp_path / "explsched.yaml").write_text("polcy: srsf")
        daemon.send_signal(signal.SIGHUP)
        until(lambda: "did you mean 'policy'" in log.read_text().replace("\\", ""), "the fault is logged")
        (tmp_path / "explsched.yaml").write_text(config(spool, "srsf"))
        daemon.send_signal(signal.SIGHUP)
        until(lambda: 'configuration reloaded policy="srsf"' in log.read_text(), "the new file is taken")
        log.rename(tmp_path / "log.1")
        daemon.send_signal(signal.SIGUSR2)
        until(lambda: log.exists() and " pass " in log.read_text(), "the log is opened anew")
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(timeout=30) == 0


def test_a_second_daemon_does_not_steer(small: Cluster, client: CliClient, spool: Path, tmp_path: Path) -> None:
    full = submit(small, "--nodes=2", "--gpus-per-node=4")
    until(lambda: state_of(client, full) == "RUNNING", "the cluster is full")
    log = tmp_path / "log"
    other = tmp_path / "other"  # with another configuration and another spool, but of the same cluster
    other.mkdir()
    with a_daemon(small, tmp_path, config(spool, "fifo")) as first:
        until(lambda: log.exists() and " pass " in log.read_text(), "the first one works")
        for argv in ("--once", "--log-level=error"):
            refused = once(small, other, config(other, "srsf"), argv)
            assert refused.returncode == 1
            assert f"pid {first.pid} on host " in refused.stderr
            assert "one at a time may" in refused.stderr
        assert once(small, other, config(other, "srsf"), "--dry-run").returncode == 0
    assert once(small, other, config(other, "srsf"), "--once").returncode == 0


def test_hostile_progress_files_do_not_stop_the_daemon(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    jobs = [submit(small, *OPTED_IN) for _ in range(5)]
    (spool / f"{jobs[0]}.jsonl").write_bytes(os.urandom(1 << 20))
    (spool / f"{jobs[1]}.jsonl").symlink_to("/etc/shadow")
    (spool / f"{jobs[2]}.jsonl").write_text('{"time_s": 1, "step": 1, "metric": "loss", "value": 1}\n')
    os.chown(spool / f"{jobs[2]}.jsonl", 65534, 65534)
    os.mkfifo(spool / f"{jobs[3]}.jsonl")
    submit(small, "--comment=explsched:early-stop=maybe", "--gres=gpu:1")
    done = once(small, tmp_path, config(spool))
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    shown = status(small, tmp_path / "once.yaml")
    reasons = {row["jobid"]: row["reason"] for row in shown}
    assert "owned by uid 65534" in reasons[jobs[2]]
    assert any("accepted: 0, 1" in reason for reason in reasons.values())
    assert {row["jobid"]: row["malformed"] for row in shown}[jobs[0]] > 0


def status(cluster: Cluster, config_path: Path) -> list[dict[str, Any]]:
    out = run(cluster, command("sexplsched"), "status", "--json", "--config", str(config_path))
    found: list[dict[str, Any]] = json.loads(out)["jobs"]
    return found


def test_the_daemon_outlives_a_restart_of_slurmctld(place: Path, spool: Path, tmp_path: Path) -> None:
    # A cluster of its own, because the restarted slurmctld is not one of the processes that the cluster knows.
    spec = ClusterSpec(nodes=2, gpus_per_node=4, shards_per_node=16, extra=(("MinJobAge", "3600"),))
    own = up(spec, place / "c")
    client = CliClient(environment=own.env())
    jobs = [submit(own, *OPTED_IN, script=work(spool, 30, "1 / $step")) for _ in range(12)]
    log = tmp_path / "log"
    with a_daemon(own, tmp_path, config(spool, slurm={"client": "cli", "timeout_s": 3.0}, **QUICK)):
        until(lambda: log.exists() and " pass " in log.read_text(), "the daemon works")
        slurmctld = next(daemon for daemon in own.daemons if daemon.name == "slurmctld")
        argv = Path(f"/proc/{slurmctld.pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        os.kill(slurmctld.pid, signal.SIGTERM)  # a restart: slurmctld saves its state, as systemctl restart has it do
        until(lambda: not slurmctld.is_alive(), "slurmctld has ended")
        until(lambda: "will try again" in log.read_text(), "the daemon notices")
        passes = log.read_text().count(" pass jobs=")
        restarted = subprocess.Popen(argv, env=environment(own), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(lambda: log.read_text().count(" pass jobs=") > passes, "the daemon reconnects by itself")
            until(lambda: client.jobs() == (), "all jobs end", 120)
            assert {final_state(own, job) for job in jobs} == {"COMPLETED"}
        finally:
            restarted.terminate()
            restarted.wait(timeout=30)


STANDBY = """
hostname standby
mount --bind {hosts} /etc/hosts
mount -t tmpfs none {root}/run  # a pid file of its own, or it would end the primary
exec "$@"
"""


def test_the_daemon_goes_on_under_a_backup_slurmctld(place: Path, spool: Path, tmp_path: Path) -> None:
    """What the primary had acknowledged and not saved is lost with it: the order is written again."""
    hosts = place / "hosts"
    hosts.write_text(f"{Path('/etc/hosts').read_text()}127.0.0.2 standby\n")
    extra = (
        ("SlurmctldHost", "standby(127.0.0.2)"),
        ("SlurmctldTimeout", "10"),
        ("CommunicationParameters", "NoInAddrAny,NoCtldInAddrAny"),
        ("MinJobAge", "3600"),
    )
    own = up(ClusterSpec(nodes=2, gpus_per_node=4, shards_per_node=0, extra=extra), place / "c")
    client = CliClient(environment=own.env())
    primary = next(daemon for daemon in own.daemons if daemon.name == "slurmctld")
    argv = Path(f"/proc/{primary.pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    script = STANDBY.format(hosts=hosts, root=own.layout.root)
    in_namespace = ("unshare", "--uts", "--mount", "sh", "-ec", script, "sh")
    output = own.layout.logs / "standby.out"
    standby = process.start([*in_namespace, *argv], own.layout.root, environment(own), output)
    try:
        until(lambda: run(own, "scontrol", "ping").count("is UP") == 2, "both are up")
        full = submit(own, "--nodes=2", "--gpus-per-node=4")
        until(lambda: state_of(client, full) == "RUNNING", "the cluster is full")
        jobs = [submit(own, "--gpus=1", f"--time={minutes}") for minutes in (60, 30, 10)]
        log = tmp_path / "log"

        def passes() -> int:
            return log.read_text().count(" pass jobs=") if log.exists() else 0

        with a_daemon(own, tmp_path, config(spool, "srsf", slurm={"client": "cli", "timeout_s": 5.0})):
            until(lambda: passes() > 1, "the daemon works")
            # Jobs that slurmctld has acknowledged and not saved die with it, with or without us.
            submitted_s, saved = time.time(), own.layout.root / "state" / "job_state"
            run(own, "scontrol", "update", f"JobId={full}", "Comment=x")  # it saves what has changed
            until(lambda: saved.exists() and saved.stat().st_mtime > submitted_s, "the primary has saved its jobs")
            os.kill(primary.pid, signal.SIGKILL)
            before = passes()
            until(lambda: passes() > before + 1, "it works again, under the backup", 120)
            jobs.append(submit(own, "--gpus=1", "--time=5"))
            until(lambda: best_first(client, jobs) == jobs[::-1], "the order is there again")
        found = {job.job_id: job for job in client.jobs()}
        assert found[full].state == "RUNNING"
        assert all(found[job].priority > 0 and found[job].restarts == 0 for job in jobs)
    finally:
        standby.terminate()
        standby.wait(30)


def best_first(client: CliClient, jobs: list[int]) -> list[int]:
    found = [job for job in client.jobs() if job.job_id in jobs]
    return [job.job_id for job in sorted(found, key=lambda job: -job.priority)]


def test_killed_at_random_moments_and_restarted(small: Cluster, client: CliClient, spool: Path, tmp_path: Path) -> None:
    jobs = [submit(small, *OPTED_IN, script=work(spool, 40, f"{i % 4} + 1 / $step")) for i in range(16)]
    gang = submit(small, "--nodes=2", "--gpus-per-node=4", script="true")
    text = config(spool, **QUICK)
    chance = random.Random(7)
    for _kill in range(20):
        daemon = start_daemon(small, tmp_path, text)
        time.sleep(chance.uniform(0.2, 2.5))
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
    with a_daemon(small, tmp_path, text):
        until(lambda: client.jobs() == (), "all jobs end", 180)
        until(lambda: client.reservations() == (), "no reservation is left", 60)
    assert {final_state(small, job) for job in (*jobs, gang)} == {"COMPLETED"}


def test_commands(small: Cluster, client: CliClient, spool: Path, tmp_path: Path) -> None:
    full = submit(small, "--nodes=2", "--gpus-per-node=4", "--job-name=evil\x1b[31m")
    waiting = submit(small, "--nodes=2", "--gpus-per-node=4", "--comment=explsched:sweep=s&early-stop=1")
    until(lambda: state_of(client, full) == "RUNNING", "the cluster is full")
    path = tmp_path / "explsched.yaml"
    path.write_text(config(spool))
    ours = [command("sexplsched")]
    table = run(small, *ours, "status", "--config", str(path))
    assert re.search(rf"^{waiting} +main .*PENDING", table, re.MULTILINE)
    assert "\x1b" not in table
    assert run(small, *ours, "status", "-h", "-j", str(full), "-o", "jobid:8,state", "--config", str(path)) == (
        f"{full:<8}  RUNNING\n"
    )
    told = run(small, *ours, "explain", str(waiting), "--config", str(path))
    assert "may be stopped early" in told
    assert "may not be preempted" in told
    assert f"reserve  {waiting}" in run(small, *ours, "plan", "--config", str(path))
    assert "explsched" in run(small, *ours, "policies")
    assert run(small, *ours, "config", "check", "--config", str(path)).endswith(": ok\n")
    assert re.search(r"^ok +slurmctld +answers", run(small, *ours, "doctor", "--config", str(path)), re.MULTILINE)


def test_a_task_file_becomes_a_job(small: Cluster, client: CliClient, tmp_path: Path) -> None:
    task = tmp_path / "task.json"
    task.write_text(json.dumps({"name": "t $(x)", "required_gpus": 2, "params": {"command": ["sleep", "60"]}}))
    out = run(small, command("sexplsched"), "submit", "--config", str(task))
    assert re.fullmatch(r"Submitted batch job \d+\n", out)
    (job,) = client.jobs()
    assert (job.name, job.gpus) == ("t $(x)", 2)
