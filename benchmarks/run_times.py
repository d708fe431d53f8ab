"""SRSF with learnt run times, against exact ones and against time limits, on the second half of the Philly trace.

The first half is the history that is known at the start; jobs that end are learnt from as the replay goes on, as the
daemon does. Philly has virtual clusters and GPUs, neither users nor names, and no time limits: with limits alone SRSF
knows nothing and keeps the order of submission, which flatters what is learnt. The constants in
`slurm_plugin.observation.history` were chosen on the second quarter of the trace; the cluster with the second half's
mean demand in view, before any JCT.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import to_builtins
from msgspec.structs import replace

from sched_policy import catalog
from simulation.cluster.engine import simulate
from simulation.cluster.settings import Estimates, Settings
from simulation.results.metrics import measure
from simulation.traces import formats
from simulation.traces.formats.cluster import read_cluster
from simulation.traces.trace import Trace, TraceJob, fit
from slurm_plugin.observation.history import Likeness
from slurm_plugin.observation.run_times import AccountedJob, coverage

ARMS = ("limit", "learnt", "exact")
ATTRIBUTION = (
    '"Philly traces", (c) Microsoft Corporation, https://github.com/msr-fiddle/philly-traces, licensed under CC BY 4.0 '
    "(https://creativecommons.org/licenses/by/4.0/); converted by siasosp23/artifacts"
)


def halves(trace: Trace) -> tuple[tuple[TraceJob, ...], Trace]:
    """The jobs that were submitted first, and the trace of the others."""
    middle = len(trace.jobs) // 2
    return trace.jobs[:middle], Trace.of(trace.jobs[middle:])


def closed(jct_s: dict[str, float]) -> float | None:
    """The part of the gap in mean JCT between limits and exact run times that learnt ones close."""
    gap_s = jct_s["limit"] - jct_s["exact"]
    return (jct_s["limit"] - jct_s["learnt"]) / gap_s if gap_s > 0 else None


def past(jobs: Sequence[TraceJob]) -> list[AccountedJob]:
    """The jobs as if they had started when they were submitted."""
    return [
        AccountedJob(Likeness(job.gpus, job.queue), job.submit_s, job.submit_s + job.run_s, job.run_s) for job in jobs
    ]


@click.command()
@click.option("--trace", "path", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--cluster", default="40x8", show_default=True)
@click.option("--interval", "interval_s", default=300.0, show_default=True, help="Seconds between passes.")
@click.option("--arms", default=",".join(ARMS), show_default=True)
@click.option("--store", type=click.Path(dir_okay=False, path_type=Path), help="Add the arms to this file.")
def main(path: Path, cluster: str, interval_s: float, arms: str, store: Path | None) -> None:
    """Replay the second half under SRSF; print mean JCTs and the part of the gap that is closed."""
    shape = read_cluster(cluster)
    history, second = halves(fit(formats.read_any(path), shape))
    report = json.loads(store.read_text()) if store and store.exists() else {"mean_jct_s": {}}
    report |= {"attribution": ATTRIBUTION, "cluster": cluster, "interval_s": interval_s, "jobs": len(second.jobs)}
    report["coverage"] = to_builtins(coverage(past(second.jobs), past(history)))
    for arm in arms.split(","):
        settings = Settings(interval_s=interval_s, estimates=Estimates.parse(arm))
        settings = replace(settings, history=history) if arm == "learnt" else settings
        outcome = simulate(second, shape, catalog.build("srsf"), settings)
        report["mean_jct_s"][arm] = round(measure(outcome).avg_jct_s or 0.0, 1)
        click.echo(f"{arm}: {report['mean_jct_s'][arm]}", err=True)
    if set(ARMS) <= report["mean_jct_s"].keys():
        part = closed(report["mean_jct_s"])
        report["gap_closed"] = None if part is None else round(part, 3)
    text = json.dumps(report, indent=1)
    if store:
        store.write_text(text + "\n")
    click.echo(text)


if __name__ == "__main__":
    main()
