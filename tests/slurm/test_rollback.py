"""explsched is taken away while its jobs run and wait: every one of them ends as if it had never been there."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster, ClusterSpec, down, up
from tests import job_submit
from tests.slurm.jobs import ROOT, SPANK_PLUGIN, a_daemon, final_state, run, state_of, submit, until

pytestmark = pytest.mark.slurm


@pytest.fixture
def installed(open_tmp: Path) -> Path:
    """What a site has of ours: the plugin and the wrappers, in a directory that can be taken away."""
    if not SPANK_PLUGIN.exists():
        pytest.skip(f"{SPANK_PLUGIN.relative_to(ROOT)} is not built (scripts/native builds it)")
    place = open_tmp / "installed"
    shutil.copytree(ROOT / "wrappers", place / "wrappers")
    shutil.copy(SPANK_PLUGIN, place)
    (open_tmp / "spool").mkdir(mode=0o1777)
    return place


@pytest.fixture
def site(needs_slurm: None, open_tmp: Path, installed: Path) -> Iterator[Cluster]:
    plugstack = f"optional {installed / SPANK_PLUGIN.name} spool={open_tmp}/spool\n"
    extra = (("JobSubmitPlugins", "lua"), ("MinJobAge", "3600"))
    files = (("plugstack.conf", plugstack), ("job_submit.lua", job_submit.script()))
    place = open_tmp / "rollback"
    yield up(ClusterSpec(nodes=1, gpus_per_node=2, extra=extra, files=files), place)
    down(place)


def test_jobs_of_every_state_end_well_without_us(site: Cluster, installed: Path, tmp_path: Path) -> None:
    client = CliClient(environment=site.env())
    begun, go = tmp_path / "begun", tmp_path / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.1; done"
    sxrun = f"cd {installed.parent} && PYTHONPATH={installed} exec {sys.executable} -m wrappers.sxrun --"
    options = ("--gres=gpu:1", "--expl-sweep=digits", "--expl-checkpoint=USR1")
    running = [
        submit(site, *options, "--time=5", script=f"{sxrun} sh -c 'touch {begun}; {wait}'"),
        submit(site, *options, "--time=5", script=wait),
    ]
    until(lambda: all(state_of(client, job) == "RUNNING" for job in running), "two jobs run")
    until(begun.exists, "sxrun has started its command")  # a job whose sxrun is gone before that cannot run
    # Slurm's order is that of submission, SRSF's the other way round: only then is there something to write.
    waiting = [
        submit(site, "--gres=gpu:2", "--time=60", script="true"),
        submit(site, *options, "--time=30", script="true"),
    ]
    spool = installed.parent / "spool"
    settings = {"interval_s": 1.0, "policy": "srsf", "slurm": {"client": "cli"}, "progress": {"spool": str(spool)}}
    config = json.dumps(settings)
    with a_daemon(site, tmp_path, config):
        until(lambda: any(job.site_factor for job in client.jobs() if job.job_id in waiting), "the order is ours")

    shutil.rmtree(installed)
    (site.layout.slurm_conf.parent / "plugstack.conf").write_text("")
    shutil.rmtree(spool)
    go.touch()
    until(lambda: all(state_of(client, job) in ("COMPLETED", "GONE") for job in (*running, *waiting)), "all jobs end")
    assert [final_state(site, job) for job in (*running, *waiting)] == ["COMPLETED"] * 4
    assert run(site, "sinfo", "--noheader", "--format=%T").strip() == "idle"
    submit(site, script="true")
