"""Are jobs lost when members of groups, managers and the daemon are killed? `python -m benchmarks.group_kills`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import click

from benchmarks.group_kills.victims import managers
from benchmarks.group_kills.wave import Battle
from slurm_plugin import devcluster
from slurm_plugin.devcluster.sharing import SPEC, Native, Site, prepare
from wrappers import kernel_manager

_KILLS_OF_A_WAVE = 25  # so that each member gets through in the end
_WAVES_IN_VAIN = 3


@click.command()
@click.option("--kills", default=100, show_default=True, type=click.IntRange(min=0))
@click.option("--work", "work_s", default=12.0, show_default=True, help="Seconds a member computes.")
@click.option("--pause", "pause_s", default=1.0, show_default=True, help="Mean seconds between two kills.")
@click.option("--seed", default=1, show_default=True)
@click.option(
    "--build", default=Path("build/native"), show_default=True, type=click.Path(path_type=Path), help="CMake build."
)
@click.option("--log", type=click.Path(path_type=Path), help="Keep the daemon's log here.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures alone.")
def main(
    kills: int,
    work_s: float,
    pause_s: float,
    seed: int,
    build: Path,
    log: Path | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Form groups of four on the GPUs of a private cluster, kill at random, and count what is lost."""
    native = Native.of(build, kernel_manager.library(os.environ), kernel_manager.manager(os.environ))
    began_s, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="expl") as scratch:
        place = Path(scratch)
        cluster = devcluster.up(SPEC, place / "c")
        try:
            site = prepare(place, cluster, native)
            battle = Battle(site, Random(seed), site.start_daemon())  # noqa: S311  no secret
            try:
                in_vain = 0
                while not battle.jobs or len(battle.kills) < kills:
                    before = len(battle.kills)
                    battle.fight(min(_KILLS_OF_A_WAVE, kills - before), work_s, pause_s)
                    in_vain = in_vain + 1 if len(battle.kills) == before else 0
                    if in_vain == _WAVES_IN_VAIN:
                        raise click.ClickException(f"{in_vain} waves, and no {battle.aim} was found to kill")
                    if not as_json:
                        click.echo(f"{len(battle.kills)} kills, {len(battle.jobs)} jobs", err=True)
            finally:
                battle.daemon.terminate()
                battle.daemon.wait(timeout=60)
                if log:
                    log.write_text(site.log.read_text())
            figures = _figures(site, battle)
        finally:
            devcluster.down(place / "c")
    figures |= {"seconds": round(time.monotonic() - began_s), "load_before_after": [load, os.getloadavg()[0]]}
    click.echo(json.dumps(figures))


def _figures(site: Site, battle: Battle) -> dict[str, object]:
    ended = {job_id: _record(site, job_id) for job_id in battle.jobs}
    aimed_at = Counter(kill.job_id for kill in battle.kills)
    told = site.log.read_text()
    return {
        "kills": len(battle.kills),
        "kills_by_kind": dict(Counter(kill.kind for kill in battle.kills)),
        "jobs": len(battle.jobs),
        "jobs_lost": sum(found["JobState"] != "COMPLETED" for found in ended.values()),
        "lost": [_story(site, job_id, found) for job_id, found in ended.items() if found["JobState"] != "COMPLETED"],
        "restarts": sum(int(found["Restarts"]) for found in ended.values()),
        "peers_hurt": sum(int(found["Restarts"]) > aimed_at[job_id] for job_id, found in ended.items()),
        "groups_verified": battle.verified,
        "groups_dissolved": told.count("group dissolved"),
        "groups_apart": told.count("group is apart"),
        "pinned_afterwards": len([job for job in site.client.jobs() if job.required_nodes]),
        "managers_left": managers(site),
    }


def _record(site: Site, job_id: int) -> dict[str, str]:
    argv = ["scontrol", "show", "job", str(job_id), "--oneliner"]
    text = subprocess.run(argv, env=dict(site.environment), capture_output=True, text=True, check=True).stdout
    return dict(word.partition("=")[::2] for word in text.split() if "=" in word)


def _story(site: Site, job_id: int, found: dict[str, str]) -> dict[str, object]:
    """What is needed to find out why a job was lost."""
    output = (site.place / f"job-{job_id}.out").read_text(errors="replace").splitlines()
    slurm = [
        line
        for path in (site.cluster.layout.logs / "slurmctld.log", site.cluster.layout.logs / "slurmd.n1.log")
        for line in path.read_text(errors="replace").splitlines()
        if f"JobId={job_id} " in line or f"Job {job_id} " in line
    ]
    facts = {key: found[key] for key in ("JobState", "Reason", "Restarts", "ExitCode", "StartTime", "EndTime")}
    return {"job": job_id, **facts, "output": output[-10:], "slurm": slurm[-12:]}


if __name__ == "__main__":
    main()
