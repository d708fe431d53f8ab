"""What `sexplsched doctor` says of a Slurm that is missing, dead, half dead or not ours to steer."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from explsched.cli import root
from slurm_plugin.instance.claim import CLAIM
from slurm_plugin.instance.heartbeat import HEARTBEATS, Heartbeat
from slurm_plugin.instance.holder import Holder

CONFIG = """\
AccountingStorageType   = {accounting}
PriorityType            = priority/multifactor
SchedulerType           = sched/backfill
"""
SCONTROL = """\
case "$*" in
  -V) echo slurm-wlm 22.05.8 ;;
  "show config") cat {directory}/config ;;
  "show node"*) echo "NodeName=n1 Gres=gpu:4 State=IDLE Partitions=main,debug" ;;
  "show partition --all"*) for name in main debug cloud; do echo "PartitionName=$name AllowGroups=ALL"; done ;;
  delete*) echo "scontrol: error: {words}" >&2; exit 1 ;;
esac
"""
SDIAG = "echo 'Server thread count: 3'; echo 'Jobs pending: 0'"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands as a site with slurmdbd has them, for a user who may steer."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    (tmp_path / "config").write_text(CONFIG.format(accounting="accounting_storage/slurmdbd"))
    tool(tmp_path, "scontrol", SCONTROL.format(directory=tmp_path, words="No such reservation"))
    tool(tmp_path, "sdiag", SDIAG)
    tool(tmp_path, "sacctmgr", "echo ours")
    tool(tmp_path, "squeue", "true")
    return tmp_path


def tool(directory: Path, name: str, body: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{body}\n")
    (directory / name).chmod(0o755)


def findings(site: Path, config: str = "") -> dict[str, tuple[str, str, str]]:
    """Level, words and advice of each check; of checks with several findings the last one."""
    path = site / "explsched.yaml"
    path.write_text(config)
    result = CliRunner().invoke(root, ["doctor", "--json", "--config", str(path)])
    found = {one["check"]: (one["level"], one["found"], one["advice"]) for one in json.loads(result.stdout)}
    assert result.exit_code == (1 if any(level == "fault" for level, _, _ in found.values()) else 0)
    return found


def test_all_is_well_with_slurm(site: Path) -> None:
    found = findings(site)
    assert found["slurmctld"][0] == found["slurmdbd"][0] == found["nodes"][0] == found["privilege"][0] == "ok"
    assert found["backfill"][0] == found["site factors"][0] == "ok"
    assert found["partitions"][:2] == (
        "note",
        "slurm.partitions is empty: all partitions with GPUs are steered (debug, main)",
    )
    assert "partitions" not in findings(site, "slurm: {partitions: [main]}")


def test_backfill_cycles_that_yield_their_locks_are_told(site: Path) -> None:
    page = "Server thread count: 3\\nBackfilling stats\\n\\tLast cycle: 4000000\\n"
    tool(site, "sdiag", f"printf '{page}'")
    level, words, advice = findings(site)["backfill"]
    assert (level, words) == ("note", "the last cycle worked 4.0 s, a cycle yields its locks after 2 s")
    assert "bf_yield_interval" in advice
    settings = (site / "config").read_text()
    (site / "config").write_text(settings + "SchedulerParameters = bf_continue,bf_yield_interval=5000000\n")
    assert findings(site)["backfill"][0] == "ok"


def test_what_slurm_lacks_is_told_with_its_use(site: Path) -> None:
    level, words, _ = findings(site)["Slurm lacks"]
    assert level == "note"
    assert words.startswith("several slurmd on a host (MULTIPLE_SLURMD is (null), without yes); with it: srun across")


def test_a_plugin_that_sets_site_factors_is_a_fault(site: Path) -> None:
    settings = (site / "config").read_text()
    (site / "config").write_text(settings + "PrioritySiteFactorPlugin = site_factor/none\n")
    assert "site factor plugin" not in findings(site)
    (site / "config").write_text(settings + "PrioritySiteFactorPlugin = site_factor/example\n")
    assert findings(site)["site factor plugin"][0] == "fault"


def test_a_slurm_that_lets_users_put_their_jobs_on_top_is_told(site: Path) -> None:
    settings = (site / "config").read_text()
    (site / "config").write_text(settings + "SchedulerParameters = bf_continue,enable_user_top\n")
    assert findings(site)["scontrol top"][0] == "note"
    assert "scontrol top" not in findings(site, "order: {scope: partition}")
    (site / "config").write_text(settings + "SchedulerParameters = bf_continue\n")
    assert "scontrol top" not in findings(site)


def test_the_range_of_site_factors_is_held_against_the_weights_of_the_site(site: Path) -> None:
    """Whoever lets the policy order all jobs learns what it outweighs."""
    settings = (site / "config").read_text()
    weights = "PriorityWeightAge = 0\nPriorityWeightFairShare = 100000\nPriorityWeightQOS = 5000000\n"
    (site / "config").write_text(settings + weights)
    assert findings(site)["site factors"][0] == "ok"  # scope user: only places that Slurm gives are exchanged
    level, words, advice = findings(site, "order: {scope: partition}")["site factors"]
    assert (level, "order.scope user" in advice) == ("note", True)
    assert words.endswith("they go up to 1000000, so the policy decides where PriorityWeightFairShare (100000) would")
    assert findings(site, "{order: {scope: partition}, slurm: {site_factor_range: 99999}}")["site factors"][0] == "ok"


def test_a_partition_that_is_not_there_is_a_fault(site: Path) -> None:
    level, words, advice = findings(site, "slurm: {partitions: [mian, main]}")["partitions"]
    assert level == "fault"
    assert words.startswith("slurm.partitions names mian, which Slurm does not have")
    assert advice == "mend slurm.partitions (Slurm has cloud, debug, main)"


def test_a_partition_whose_nodes_are_powered_down_is_a_note(site: Path) -> None:
    """Slurm shows cloud nodes that are powered down only with PrivateData=cloud."""
    level, words, advice = findings(site, "slurm: {partitions: [cloud, main]}")["partitions"]
    assert level == "note"
    assert words.startswith("Slurm shows no node of cloud: ")
    assert "PrivateData=cloud" in advice


def test_a_dead_slurmdbd_is_told_and_no_fault(site: Path) -> None:
    tool(site, "sacctmgr", "echo 'sacctmgr: error: Problem talking to the database: Connection refused' >&2; exit 1")
    level, words, advice = findings(site)["slurmdbd"]
    assert (level, "Problem talking to the database" in words) == ("note", True)
    assert advice.startswith("is slurmdbd running?")


@pytest.mark.parametrize(
    ("accounting", "words"),
    [
        ("accounting_storage/slurmdbd", "sacctmgr add user .* AdminLevel=Admin"),
        ("accounting_storage/none", "set up slurmdbd, which stores administrators"),
        ("(null)", "set up slurmdbd, which stores administrators"),
    ],
)
def test_how_to_get_the_right_to_steer(site: Path, accounting: str, words: str) -> None:
    (site / "config").write_text(CONFIG.format(accounting=accounting))
    tool(site, "scontrol", SCONTROL.format(directory=site, words="Invalid user id"))
    found = findings(site)
    level, _, advice = found["privilege"]
    assert level == "note"
    assert re.match(words, advice)
    assert ("slurmdbd" in found) is ("slurmdbd" in accounting)


@pytest.mark.parametrize(("asks", "level"), [(469, "fault"), (1000, "note")])
def test_what_the_daemons_user_may_not_do_is_a_fault(
    site: Path, monkeypatch: pytest.MonkeyPatch, asks: int, level: str
) -> None:
    """For anybody else it is as it should be."""
    daemons = SimpleNamespace(pw_name="explsched", pw_uid=469, pw_gid=469)
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: daemons)
    monkeypatch.setattr(os, "geteuid", lambda: asks)
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    kept = f"audit: {{file: {site}/a}}\nstate: {{directory: {site}}}\norder: {{site_factor_file: {site}/f}}\n"
    tool(site, "sacctmgr", "echo Operator")
    found = findings(site, kept)
    assert {found[what][0] for what in ("privilege", "audit file", "site factor file", "state")} == {level}
    tool(site, "scontrol", SCONTROL.format(directory=site, words="Invalid user id"))
    assert findings(site)["privilege"][0] == level


@pytest.mark.parametrize(("uid", "advice"), [(0, "for the daemon's own user: runuser"), (1000, "")])
def test_what_root_may_do_says_nothing_of_the_daemon(
    site: Path, monkeypatch: pytest.MonkeyPatch, uid: int, advice: str
) -> None:
    monkeypatch.setattr("slurm_plugin.cli.doctor_slurm.os.geteuid", lambda: uid)
    level, words, more = findings(site)["privilege"]
    assert (level, words, more[: len(advice) or None]) == ("ok", f"uid {uid} may steer jobs", advice)


def test_an_operator_is_told_that_it_may_write_no_comments(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.cli.doctor_slurm.os.geteuid", lambda: 1000)
    for level, told in (("Administrator", "ok"), ("Operator", "note")):
        tool(site, "sacctmgr", f"echo {level}")
        assert findings(site)["privilege"][0] == told


def test_a_slurmctld_that_is_busy_has_allowed_nothing(site: Path) -> None:
    words = "Socket timed out on send/recv operation"
    tool(site, "scontrol", SCONTROL.format(directory=site, words=words))
    found = findings(site)
    assert "privilege" not in found
    assert (found["slurmctld"][0], words in found["slurmctld"][1]) == ("fault", True)


def test_who_may_not_see_the_nodes_is_told_to_become_an_operator(site: Path) -> None:
    """slurm.conf has PrivateData=nodes."""
    scontrol = SCONTROL.format(directory=site, words="Invalid user id")
    shown = 'echo "NodeName=n1 Gres=gpu:4 State=IDLE Partitions=main,debug"'
    assert shown in scontrol
    tool(
        site, "scontrol", scontrol.replace(shown, "echo 'slurm_load_node error: Access/permission denied' >&2; exit 1")
    )
    found = findings(site)
    assert (found["privilege"][0], "AdminLevel=Admin" in found["privilege"][2]) == ("note", True)
    assert found["slurmctld"][2] == "PrivateData in slurm.conf hides it from users who are not operators"


def test_a_slurm_that_gives_every_job_whole_nodes_is_told(site: Path) -> None:
    assert "whole nodes" not in findings(site)
    (site / "config").write_text((site / "config").read_text() + "SelectType = select/linear\n")
    level, found, advice = findings(site)["whole nodes"]
    assert (level, "all jobs are left to Slurm" in found, "cons_tres" in advice) == ("note", True, True)


def test_a_policy_that_shares_gpus_needs_nodes_with_shards(site: Path) -> None:
    shares = "policy: gandiva"
    level, found, _advice = findings(site, shares)["sharing"]
    assert (level, "no node has shards" in found) == ("note", True)
    assert "sharing" not in findings(site, "policy: simple")
    scontrol = (site / "scontrol").read_text()
    (site / "scontrol").write_text(scontrol.replace("Gres=gpu:4", "Gres=gpu:4,shard:8"))
    assert "sharing" not in findings(site, shares)


def test_a_slurm_that_does_not_answer_is_a_fault(site: Path) -> None:
    tool(site, "sdiag", "echo 'sdiag: error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    level, words, advice = findings(site)["slurmctld"]
    assert (level, advice) == ("fault", "is slurmctld running, and SLURM_CONF right?")
    assert "Unable to contact slurm controller" in words


def test_a_wrong_configuration_is_named_and_the_rest_is_checked(site: Path) -> None:
    found = findings(site, "interval_s: 15s")
    assert found["configuration"][0] == "fault"
    assert "interval_s: must be a number of seconds" in found["configuration"][1]
    assert found["slurmctld"][0] == "ok"
    named = {"progress spool", "audit file", "site factor file", "state", "daemon"}
    assert not named & found.keys(), "the file does not tell which they are, and the defaults may be nobody's"


@pytest.fixture
def spool(site: Path) -> Path:
    """A spool as it should be, of our own group."""
    found = site / "spool"
    found.mkdir()
    found.chmod(0o3777)
    return found


def test_a_spool_that_is_missing_or_closed_is_told(site: Path) -> None:
    spool = site / "spool"
    level, _, advice = findings(site, f"progress: {{spool: {spool}}}")["progress spool"]
    assert (level, advice) == ("fault", f"install -d -m 3777 -g explsched {spool}")
    spool.mkdir(mode=0o755)
    assert "mode 0755" in findings(site, f"progress: {{spool: {spool}}}")["progress spool"][1]
    spool.chmod(0o1777)
    level, found, _ = findings(site, f"progress: {{spool: {spool}}}")["progress spool"]
    assert level == "note"
    assert "read each other's progress" in found
    spool.chmod(0o3777)
    assert findings(site, f"progress: {{spool: {spool}}}")["progress spool"][0] == "ok"


def test_a_user_of_whom_nobody_removes_old_reports_is_told(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.cli.doctor.MANY_FILES", 3)
    spool = site / "of the spool"
    own = spool / "20001"
    own.mkdir(parents=True)
    for number in range(3):
        (own / f"{number}.jsonl").touch()
    assert "old reports" not in findings(site, f"progress: {{spool: {spool}}}")
    (own / "3.jsonl").touch()
    level, found, advice = findings(site, f"progress: {{spool: {spool}}}")["old reports"]
    assert (level, found) == ("note", f"{own}: more than 3 files, which each pass lists")
    command, _, otherwise = advice.partition("; ")
    assert "fewer days" in otherwise
    os.utime(own / "0.jsonl", (0.0, 0.0))
    subprocess.run(["sh", "-c", command], check=True)
    assert sorted(path.name for path in own.iterdir()) == ["1.jsonl", "2.jsonl", "3.jsonl"]


def test_a_spool_whose_group_has_members_is_told(site: Path, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {
        0: grp.struct_group(("explsched", "x", 0, ["explsched"])),
        1: grp.struct_group(("users", "x", 1, ["ada", "bob"])),
    }
    ours = spool.stat().st_gid
    for gid, level, words in (
        (0, "ok", "readable for group explsched"),
        (1, "note", "has members (ada, bob), who can"),
    ):
        monkeypatch.setattr(grp, "getgrgid", {ours: named[gid]}.__getitem__)
        told = findings(site, f"progress: {{spool: {spool}}}")["progress spool"]
        assert (told[0], words in told[1]) == (level, True)


@pytest.mark.parametrize("asks", [0, 1000, 469])
def test_a_spool_whose_group_is_not_the_daemons_is_a_fault(
    site: Path, spool: Path, monkeypatch: pytest.MonkeyPatch, asks: int
) -> None:
    """Users' directories get the spool's group and are closed to everybody else. Whoever asks."""
    ours = spool.stat().st_gid
    monkeypatch.setattr(os, "geteuid", lambda: asks)
    monkeypatch.setattr(os, "getgroups", list)
    monkeypatch.setattr(
        pwd, "getpwnam", lambda _name: SimpleNamespace(pw_name="explsched", pw_uid=469, pw_gid=ours + 1)
    )
    for groups, level in (([ours + 1], "fault"), ([ours + 1, ours], "ok")):
        monkeypatch.setattr(os, "getgrouplist", lambda _name, _gid, groups=groups: groups)
        told = findings(site, f"progress: {{spool: {spool}}}")["progress spool"]
        assert told[0] == level
        assert ("which uid 469 is not in" in told[1]) == (level == "fault")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize(("uid", "level"), [(0, "ok"), (469, "fault")])
def test_a_daemon_that_runs_is_the_one_that_must_be_in_the_spools_group(
    site: Path, spool: Path, monkeypatch: pytest.MonkeyPatch, uid: int, level: str
) -> None:
    """Owning the spool does not help: users' directories are their own, with its group."""
    os.chown(spool, 469, 0)
    spool.chmod(0o3777)  # which the change of owner has cleared
    Heartbeat(spool, "c", Holder.here()).beat(90.0)
    (beat,) = (spool / HEARTBEATS).iterdir()
    os.chown(beat, uid, uid)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="u", pw_uid=uid, pw_gid=uid))
    monkeypatch.setattr(os, "getgrouplist", lambda _name, gid: [gid])
    assert findings(site, f"progress: {{spool: {spool}}}")["progress spool"][0] == level


def test_a_daemon_that_died_is_a_fault_and_one_that_never_ran_is_a_note(site: Path, spool: Path) -> None:
    named = f"progress: {{spool: {spool}}}"
    assert findings(site, named)["daemon"][0] == "note"
    heartbeat = Heartbeat(spool, "c", Holder.here())
    heartbeat.beat(90.0)
    assert findings(site, named)["daemon"][0] == "ok"
    (beat,) = (spool / HEARTBEATS).iterdir()
    os.utime(beat, (time.time() - 200, time.time() - 200))
    level, found, _ = findings(site, named)["daemon"]
    assert (level, bool(re.search(r"ended or hangs on .*: its last heartbeat is 20\d s old", found))) == ("fault", True)
    heartbeat.stop()
    assert findings(site, named)["daemon"][0] == "note"


@pytest.mark.parametrize(("asks", "level"), [(0, "ok"), (1000, "note")])
def test_where_the_daemon_may_be_another_users_a_foreign_group_is_a_note(
    site: Path, spool: Path, monkeypatch: pytest.MonkeyPatch, asks: int, level: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: asks)
    monkeypatch.setattr(os, "getegid", lambda: spool.stat().st_gid + 1)
    monkeypatch.setattr(os, "getgroups", list)
    monkeypatch.setattr(pwd, "getpwnam", {}.__getitem__)
    assert findings(site, f"progress: {{spool: {spool}}}")["progress spool"][0] == level


def test_a_plugin_of_another_slurm_is_a_fault(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = site / "plugins"
    plugins.mkdir()
    plugin = plugins / "explsched.so"
    with (site / "config").open("a") as config:
        config.write(f"PluginDir = {plugins}:{site}/more\n")
    (site / "slurm.conf").touch()
    (site / "plugstack.conf").write_text("optional explsched.so spool=/x\n")
    monkeypatch.setenv("SLURM_CONF", str(site / "slurm.conf"))
    assert findings(site)["SPANK plugin"][:2] == ("note", f"{plugin}: No such file or directory")
    (site / "more").mkdir()
    for place in (site / "more/explsched.so", plugin):
        place.write_bytes(b"\x7fELF\0explsched:slurm\x0022.05\0")
        assert findings(site)["SPANK plugin"][:2] == ("ok", f"{place} is built for Slurm 22.05")
    for other, release in ((b"\0explsched:slurm\x0024.11\0", "24.11"), (b"\0", "a release that it does not name")):
        plugin.write_bytes(other)
        level, found, advice = findings(site)["SPANK plugin"]
        assert (level, f"{plugin} is built for {release}, Slurm is 22.05.8" in found) == ("fault", True)
        assert "build it against Slurm 22.05" in advice


def test_a_pyslurm_without_reservations_is_not_used(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pyslurm 24.11.0."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    (site / "pyslurm.py").write_text("class Nodes:\n    load = staticmethod(dict)\n")
    level, found, _advice = findings(site)["pyslurm"]
    assert (level, "no attribute 'Reservations'" in found) == ("note", True)
    level, found, advice = findings(site, "slurm: {client: pyslurm}")["pyslurm"]
    assert (level, "so the daemon does not start" in found, "auto or cli" in advice) == ("fault", True, True)
    (site / "pyslurm.py").write_text("class Nodes:\n    load = staticmethod(dict)\n\n\nclass Reservations:\n    pass\n")
    assert findings(site)["pyslurm"][0] == "ok"


def test_a_writer_of_another_slurm_is_told(site: Path) -> None:
    """No release of ours is 99.05, so the program that is installed is not for it."""
    scontrol = (site / "scontrol").read_text()
    (site / "scontrol").write_text(scontrol.replace("22.05.8", "99.05.1"))
    level, found, _advice = findings(site)["writer"]
    assert (level, "built for Slurm 99.05: scontrol writes" in found) == ("note", True)
    tool(site, "explsched-site-factors", "echo 99.05")
    assert "writer" not in findings(site)


def test_plain_sbatch_is_ready_when_slurm_loads_our_plugin_and_our_script(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked() -> list[tuple[str, str]]:
        found = findings(site)
        return [found[check][:2] for check in ("plain sbatch", "job_submit.lua")]

    slurm = site / "slurm"
    (slurm / "plugstack.conf.d").mkdir(parents=True)
    main, plugin = slurm / "plugstack.conf", slurm / "plugstack.conf.d/explsched.conf"
    (slurm / "plugstack.conf.d/former").mkdir()
    main.write_text("include plugstack.conf.d/*\n")
    plugin.write_text("#optional explsched.so\n")
    (slurm / "slurm.conf").touch()
    monkeypatch.setenv("SLURM_CONF", str(slurm / "slurm.conf"))
    (plain, lua) = checked()
    assert plain == ("note", f"{main} has no explsched.so: sbatch lacks the --expl-... options")
    assert lua[0] == "note"
    assert lua[1].startswith("Slurm has no JobSubmitPlugins=lua")
    plugin.write_text("required /usr/lib/explsched.so\n")
    settings = (site / "config").read_text()
    (site / "config").write_text(settings + "JobSubmitPlugins = throttle,lua\n")
    (slurm / "job_submit.lua").write_text("-- explsched_submit\n")
    assert checked() == [
        ("note", f"{main} has explsched.so as required"),
        ("note", f"{slurm}/job_submit.lua does not call explsched_submit"),
    ]
    plugin.write_text("optional explsched.so spool=/x\n")
    (slurm / "job_submit.lua").write_text("return explsched_submit(job)\n")
    assert [level for level, _ in checked()] == ["ok", "ok"]
    main.unlink()
    assert checked()[0] == ("note", f"{main} has no explsched.so: sbatch lacks the --expl-... options")


def test_plain_sbatch_is_asked_of_slurm_and_not_of_the_usual_places(site: Path) -> None:
    """slurm.conf may include other files, name another plugstack.conf, and lie anywhere: slurmctld tells."""
    conf, plugstack = site / "etc/slurm.conf", site / "elsewhere/spank.conf"
    for path in (conf, plugstack):
        path.parent.mkdir()
        path.touch()
    plugstack.write_text("optional /usr/lib/explsched.so\n")
    conf.with_name("job_submit.lua").write_text("return explsched_submit(job)\n")
    settings = f"SLURM_CONF = {conf}\nPlugStackConfig = {plugstack}\nJobSubmitPlugins = lua\n"
    (site / "config").write_text((site / "config").read_text() + settings)
    found = findings(site)
    assert found["plain sbatch"][:2] == ("ok", f"{plugstack} has explsched.so")
    assert found["job_submit.lua"][:2] == ("ok", f"{site}/etc/job_submit.lua")


def test_what_cannot_be_read_is_not_said_to_be_missing(site: Path) -> None:
    """A login node has neither slurmctld's script nor, without configuration files of its own, plugstack.conf."""
    there = site / "not-here/slurm.conf"
    settings = f"SLURM_CONF = {there}\nJobSubmitPlugins = lua\n"
    (site / "config").write_text((site / "config").read_text() + settings)
    found = findings(site)
    missing = "No such file or directory"
    unknown = f"{missing}: it is not known whether sbatch has the --expl-... options"
    assert found["plain sbatch"][:2] == ("note", f"{there.with_name('plugstack.conf')}: {unknown}")
    assert found["job_submit.lua"][:2] == ("note", f"{there.with_name('job_submit.lua')}: {missing}")


def test_a_policy_that_chooses_nodes_needs_time(site: Path) -> None:
    assert "placement" not in findings(site)
    assert findings(site, "policy: balanced")["placement"][0] == "note"
    settings = (site / "config").read_text()
    (site / "config").write_text(settings + "SchedulerParameters = bf_continue,defer,batch_sched_delay=10\n")
    level, found, advice = findings(site, "policy: balanced")["placement"]
    assert (level, "every 15 s" in found, "10 s after" in found) == ("note", True, True), "a pass may come later"
    assert "batch_sched_delay and bf_interval in SchedulerParameters to 30" in advice
    assert findings(site, "policy: balanced\ninterval_s: 5")["placement"][0] == "ok"
    (site / "config").write_text(settings + "SchedulerParameters = defer,batch_sched_delay=10,bf_interval=2\n")
    assert findings(site, "policy: balanced\ninterval_s: 5")["placement"][0] == "note"


def test_a_policy_that_pins_jobs_needs_a_slurm_that_resizes_none(site: Path) -> None:
    shares = "policy: explsched-share\norder: {scope: partition}"
    assert "pins" not in findings(site)
    for policy in ("policy: balanced", "policy: sjf-bsbf", shares):
        assert findings(site, policy)["pins"][0] == "note"
    settings = (site / "config").read_text()
    (site / "config").write_text(settings + "SchedulerParameters = defer,disable_job_shrink\n")
    assert findings(site, shares)["pins"][0] == "ok"


def test_directories_that_are_missing_are_told(site: Path) -> None:
    nowhere = "audit: {file: /nonexistent/x/audit.jsonl}\nstate: {directory: /nonexistent/x/state}\n"
    found = findings(site, nowhere)
    assert found["audit file"][:2] == (
        "note",
        "/nonexistent/x: No such file or directory: changes in Slurm are not written down",
    )
    assert found["state"][0] == "note"
    closed = "x" * 300  # even root gets an error for it, as users do for a closed directory
    found = findings(site, f"audit: {{file: /{closed}/audit.jsonl}}\nprogress: {{spool: /{closed}/progress}}")
    assert {found[what][1].split(": ")[1] for what in ("audit file", "progress spool", "daemon")} == {
        "File name too long"
    }
    there = f"audit: {{file: {site}/audit.jsonl}}\nstate: {{directory: {site}/state}}\n"
    assert {findings(site, there)[what][0] for what in ("audit file", "state")} == {"ok"}


def test_directories_that_the_service_makes_at_its_start_are_not_missed_before(
    site: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, states = site / "log", site / "lib"
    monkeypatch.setattr("slurm_plugin.cli.doctor.MADE_AT_START", {logs, states})
    named = f"audit: {{file: {logs}/a}}\norder: {{site_factor_file: {states}/f}}\nprogress: {{spool: {spool}}}\n"
    for what in ("audit file", "site factor file"):
        level, found, _ = findings(site, named)[what]
        assert (level, "the service makes it when it starts" in found) == ("ok", True)
    Heartbeat(spool, "c", Holder.here()).beat(90.0)
    for what in ("audit file", "site factor file"):
        assert findings(site, named)[what][0] != "ok", "a daemon runs, and they are gone"


@pytest.mark.parametrize(
    ("shown", "level", "words"),
    [
        ("SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n1", "ok", "1 nodes below 1 leaf switches or blocks"),
        ("X=0 Y=0 Z=0 Nodes=n1", "note", "not known: topology 'X=0"),
    ],
)
def test_whether_the_network_is_known(site: Path, shown: str, level: str, words: str) -> None:
    assert "topology" not in findings(site)
    with (site / "config").open("a") as config:
        config.write("TopologyPlugin = topology/tree\n")
    answers = SCONTROL.format(directory=site, words="No such reservation")
    tool(site, "scontrol", answers.replace("  delete*", f"  'show topology') echo '{shown}' ;;\n  delete*"))
    found = findings(site)["topology"]
    assert (found[0], words in found[1]) == (level, True)


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ({"f_bavail": 3}, "its file system is full"),
        ({"f_favail": 0}, "its file system has no inodes left"),
        ({"f_flag": os.ST_RDONLY}, "its file system is read-only"),
    ],
)
def test_directories_that_cannot_be_written_are_told(
    site: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, int], fault: str
) -> None:
    room = {"f_bavail": 1 << 20, "f_frsize": 4096, "f_blocks": 1 << 21, "f_favail": 9, "f_files": 10, "f_flag": 0}
    monkeypatch.setattr("os.statvfs", lambda _path: SimpleNamespace(**{**room, **found}))
    spool = site / "progress"
    spool.mkdir()
    kept = f"audit: {{file: {site}/a}}\nstate: {{directory: {site}}}\norder: {{site_factor_file: {site}/f}}\n"
    for mode in (0o3777, 0o1777, 0o755):  # a mode that could not be changed there either is not what is told
        spool.chmod(mode)
        told = findings(site, f"{kept}progress: {{spool: {spool}}}\n")
        for what in ("audit file", "site factor file", "state", "progress spool"):
            assert fault in told[what][1]
        assert told["progress spool"][0] == "fault"


def test_a_directory_of_another_cluster_is_named(site: Path) -> None:
    (site / "config").write_text(f"{(site / 'config').read_text()}ClusterName = beta\n")
    (site / CLAIM).write_text("alpha\n")
    found = findings(site, f"order: {{site_factor_file: {site}/site_factors.json}}")
    level, words, _ = found["order.site_factor_file"]
    assert level == "fault"
    assert words == f"{site} belongs to cluster alpha, so the daemon of beta does not start"
    (site / CLAIM).write_text("beta\n")
    assert "order.site_factor_file" not in findings(site, f"order: {{site_factor_file: {site}/site_factors.json}}")
