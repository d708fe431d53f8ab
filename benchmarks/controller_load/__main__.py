"""`python -m benchmarks.controller_load`: slurmctld with a long queue, without us and with us, in turns.

All arms run on the same private cluster, whose queue moves: jobs end and new ones come. Each stretch begins with
`sdiag --reset`. Hosts are noisy for tens of seconds at a time, so stretches are short, arms take turns, and figures are
medians over stretches. After each round what the daemon has written is taken back.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.controller_load import arms, backoff, figures, queue
from slurm_plugin import devcluster

_SEED = 1


@click.command()
@click.option("--jobs", default=5000, show_default=True, type=click.IntRange(1, 20000), help="Waiting jobs.")
@click.option("--seconds", default=30.0, show_default=True, type=click.FloatRange(1), help="Length of a stretch.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(0), help="Stretches of each arm.")
@click.option("--interval", "interval_s", default=15.0, show_default=True, help="Of the daemon: `interval_s`.")
@click.option("--policy", default="explsched", show_default=True, help="Of the daemon.")
@click.option("--leases", default=None, type=click.IntRange(0), help="Of the daemon: `backfill.reservation_depth`.")
@click.option("--storm", "storm_s", default=40.0, show_default=True, help="Seconds of each part of the back-off test.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the figures to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures alone.")
def main(
    jobs: int,
    seconds: float,
    rounds: int,
    interval_s: float,
    policy: str,
    leases: int | None,
    storm_s: float,
    out: Path | None,
    as_json: bool,  # noqa: FBT001  click passes by name
) -> None:
    """Measure what steering costs slurmctld, and whether the daemon backs off when slurmctld is busy."""
    settings = {
        "policy": policy,
        "interval_s": interval_s,
        "slurm": {"client": "cli"},
        "backfill": {"reservation_depth": leases},
    }
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="expl") as scratch:
        directory = Path(scratch)
        directory.chmod(0o755)
        product = devcluster.Product(directory / "explsched")
        product.install(settings)
        cluster = devcluster.up(queue.spec(jobs), directory / "c")
        slurmctld = next(each.pid for each in cluster.daemons if each.name == "slurmctld")
        site = arms.Site(product, cluster.env(), slurmctld)
        try:
            queue.fill(jobs, site.environment, _SEED)
            stretches = []
            for stretch in arms.measure(site, seconds, rounds, _SEED + 1):
                stretches.append(stretch)
                if not as_json:
                    click.echo(json.dumps(figures.raw([stretch])[0]))
            found["jobs_waiting"] = sum(job.state == "PENDING" for job in site.client.jobs())
            if stretches:
                found |= {**figures.summary(stretches), "stretches": figures.raw(stretches)}
            if storm_s > 0:
                found["back_off"] = asdict(backoff.measure(directory, site.environment, storm_s))
        finally:
            devcluster.down(directory / "c")
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=None if as_json else 1))


if __name__ == "__main__":
    main()
