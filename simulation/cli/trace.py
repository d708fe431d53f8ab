"""`sexplsched trace`: inspect traces, convert them to our own format, generate some."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click
import numpy as np
from msgspec import Struct, to_builtins

from explsched.cli import Commands, examples, input_file, is_stdout, json_option, output_file
from explsched.tables import Column, lines, room
from simulation.traces import formats
from simulation.traces.formats import own, sacct
from simulation.traces.formats.cluster import read_cluster
from simulation.traces.generate import WorkloadSpec
from simulation.traces.generate import generate as generate_trace
from simulation.traces.trace import ClusterShape, Rejected, Trace, fit, require_all_rows

_EXAMPLES = """\b
examples:
  sexplsched trace summary history.txt --cluster 8x8
  sexplsched trace generate --jobs 1000 --seed 1 --load 1.2 jobs.csv
"""

_file = click.argument("file", type=click.Path(path_type=Path), callback=input_file)
_out = click.argument("out", type=click.Path(path_type=Path, allow_dash=True), callback=output_file)
_format = click.option(
    "--format", "form", type=click.Choice(formats.NAMES), help="Format of FILE.  [default: detected from the header]"
)
_strict = click.option("--strict", "is_strict", is_flag=True, help="Fail if any row cannot be used.")
_FEW_EARLY = 0.03
"""Where fewer of a history's jobs came in the first tenth of its span, most of these were left from an earlier time."""
_HELD_BACK_S = 60.0  # slurmctld itself takes a moment to find a job eligible
_CLUSTER_HELP = "Shape such as 8x8, or a file: YAML or JSON with nodes and gpus_per_node, or Muri's CSV."


_HELP = f"""Inspect, convert and generate job traces.

A trace is a text file with a header, in one of five formats: `own` (CSV with columns job_id, submit_s, gpus, run_s and
optional ones), `sweep`, which `sexplsched sweep export` writes, `muri`, `philly`, and `sacct`, the history of a site,
which this command writes:

\b
{sacct.COMMAND}
"""


@click.group(cls=Commands, help=_HELP, epilog=_EXAMPLES)
def trace() -> None:
    """Inspect, convert and generate job traces."""


@trace.command(epilog=examples("sexplsched trace summary history.txt --cluster 8x8"))
@_file
@_format
@click.option("--cluster", help=f"Report the load on this cluster. {_CLUSTER_HELP}")
@click.option("--rejected", "shown", default=10, show_default=True, type=click.IntRange(min=0), metavar="N",
              help="Show the first N rows that were left out.")  # fmt: skip
@_strict
@json_option
def summary(
    file: Path,
    form: str | None,
    cluster: str | None,
    shown: int,
    is_strict: bool,  # noqa: FBT001  click passes by name
    as_json: bool,  # noqa: FBT001
) -> None:
    """Show what a trace contains, and which rows cannot be used."""
    shape = None if cluster is None else read_cluster(cluster)
    read = _read(file, form, shape, is_strict=is_strict)
    figures = summarize(read)
    load = None if shape is None else figures.load(shape)
    if as_json:
        found = {
            "file": str(file),
            **to_builtins(figures),
            "cluster": None if shape is None else to_builtins(shape),
            "load": load,
            "rejected_rows": [to_builtins(row) for row in read.rejected[:shown]],
        }
        click.echo(json.dumps(found, indent=1))
        return
    columns = (Column("FIGURE"), Column("VALUE"))
    click.echo("\n".join(lines(columns, _lines(figures, shape, load), room(), heading=False)))
    for row in read.rejected[:shown]:
        click.echo(f"line {row.line}: {row.reason}")


@trace.command(epilog=examples("sexplsched trace convert history.txt jobs.csv"))
@_file
@_out
@_format
@click.option("--cluster", help=f"Leave out jobs larger than this cluster. {_CLUSTER_HELP}")
@_strict
@json_option
def convert(
    file: Path,
    out: Path,
    form: str | None,
    cluster: str | None,
    is_strict: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Convert a trace to our own format.

    Writes to OUT, or to the standard output if OUT is -. Rows that cannot be used are left out and counted on the
    standard error.
    """
    shape = None if cluster is None else read_cluster(cluster)
    found = _read(file, form, shape, is_strict=is_strict)
    if curves := sum(job.learning is not None for job in found.jobs):
        click.echo(f"warning: our own format has no learning curves: those of {curves:,} jobs are lost", err=True)
    _finish(found, out, as_json=as_json)


@trace.command(epilog=examples("sexplsched trace generate --jobs 1000 --seed 1 --load 1.2 jobs.csv"))
@_out
@click.option("--jobs", required=True, type=click.IntRange(min=1), help="Number of jobs.")
@click.option(
    "--seed", required=True, type=click.IntRange(min=0), help="Random seed; the same seed gives the same trace."
)
@click.option("--load", default=1.0, show_default=True, type=float,
              help="Submitted work relative to the capacity of the cluster.")  # fmt: skip
@click.option("--cluster", default="8x8", show_default=True, help=f"Cluster that --load refers to. {_CLUSTER_HELP}")
@click.option("--median-run", "median_run_s", default=1144.0, show_default=True, type=float, metavar="SECONDS",
              help="Median of the log-normal run times.")  # fmt: skip
@click.option("--sigma", default=2.21, show_default=True, type=float,
              help="Standard deviation of the logarithm of run times.")  # fmt: skip
@click.option("--users", default=20, show_default=True, type=click.IntRange(min=1), help="Number of users.")
@json_option
def generate(
    out: Path,
    jobs: int,
    seed: int,
    load: float,
    cluster: str,
    median_run_s: float,
    sigma: float,
    users: int,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Generate a trace from documented distributions.

    Writes to OUT, or to the standard output if OUT is -. Models and their stage times, GPU counts and run
    times follow the published traces of Muri and Philly; submissions are a Poisson process.
    """
    spec = WorkloadSpec(jobs, read_cluster(cluster), load=load, median_run_s=median_run_s, sigma=sigma, users=users)
    _finish(generate_trace(spec, seed), out, as_json=as_json)


def _read(file: Path, form: str | None, shape: ClusterShape | None, *, is_strict: bool) -> Trace:
    found = formats.read_any(file, form)
    if shape is not None:
        found = fit(found, shape)
    if is_strict:
        require_all_rows(file, found.rejected)
    return found


def _finish(made: Trace, out: Path, *, as_json: bool) -> None:
    """Write a trace and report what was written, on the standard error if the trace goes to the standard output."""
    if is_stdout(out):
        own.dump(made.jobs, sys.stdout)
    else:
        own.write(made, out)
    report = {"file": str(out), "jobs": len(made.jobs), "rejected": len(made.rejected)}
    text = json.dumps(report) if as_json else f"{report['jobs']:,} jobs written to {out}"
    click.echo(text, err=is_stdout(out))
    if made.rejected and not as_json:
        click.echo(f"{report['rejected']:,} rows left out, see `sexplsched trace summary`", err=True)


def _lines(figures: Summary, shape: ClusterShape | None, load: float | None) -> list[tuple[str, str]]:
    lines = [
        ("format", figures.source_format),
        ("jobs", f"{figures.jobs:,} ({figures.with_stages:,} with stages, {figures.with_time_limit:,} with a limit)"),
        ("submitted", f"within {_length(figures.span_s)}"),
        ("work", f"{figures.work_gpu_s / 3600:,.0f} GPU hours"),
    ]
    if figures.run:
        median, mean, longest = (_length(of) for of in (figures.run.median_s, figures.run.mean_s, figures.run.max_s))
        lines.append(("run time", f"median {median}, mean {mean}, longest {longest}"))
    lines.append(("gang", ", ".join(f"{size.gpus} GPUs: {size.jobs:,}" for size in figures.gpus)))
    lines.append(("owners", f"{figures.users:,} users, {figures.queues:,} queues"))
    early = figures.first_tenth_share
    if early is not None and early < _FEW_EARLY and figures.source_format == sacct.FORMAT.name:
        text = f"{early:.1%} of the jobs in the first tenth of that time: left from before? See docs/simulation.md"
        lines.append(("early", text))
    if figures.held_back:
        lines.append(("held back", f"{figures.held_back:,} jobs (--dependency, --begin, ...) come when they did then"))
    if shape is not None:
        text = "all submitted at once" if load is None else f"{load:.3g}"
        lines.append(("load", f"{text} on {shape.nodes}x{shape.gpus_per_node} ({shape.gpus:,} GPUs)"))
    by = ", ".join(f"{fault.column} {fault.rows:,}" for fault in figures.rejected_by)
    lines.append(("left out", f"{figures.rejected:,} rows" + (f" ({by})" if by else "")))
    return lines


def _length(seconds: float) -> str:
    """A duration as Slurm prints it: [days-]hours:minutes:seconds."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02}:{minute:02}:{second:02}"


class RunTimesAlone(Struct, frozen=True):
    """Run times of all jobs, alone on their GPUs."""

    median_s: float
    mean_s: float
    p99_s: float
    max_s: float


class JobsOfSize(Struct, frozen=True):
    """How many jobs have a gang of so many GPUs."""

    gpus: int
    jobs: int


class RejectedRows(Struct, frozen=True):
    """How many rows were left out for what one column holds; `row` where no single column is at fault."""

    column: str
    rows: int


class Summary(Struct, frozen=True):
    """What a trace holds.

    Attributes:
        source_format: the format it was read from.
        jobs: how many.
        span_s: from the first submission to the last.
        work_gpu_s: GPUs x run time of all jobs.
        run: run times, None without jobs.
        gpus: jobs by GPU count, smallest first.
        users: distinct owners that are named.
        queues: distinct queues that are named.
        with_stages: jobs whose stage times are known.
        with_time_limit: jobs that have one.
        first_tenth_share: share of the jobs that were submitted in the first tenth of the span; None without a span.
        held_back: jobs of a history that became eligible a minute or more after they were submitted.
        rejected: rows left out.
        rejected_by: rows left out by the column at fault, most first.

    """

    source_format: str
    jobs: int
    span_s: float
    work_gpu_s: float
    run: RunTimesAlone | None
    gpus: tuple[JobsOfSize, ...]
    users: int
    queues: int
    with_stages: int
    with_time_limit: int
    first_tenth_share: float | None
    held_back: int
    rejected: int
    rejected_by: tuple[RejectedRows, ...]

    def load(self, cluster: ClusterShape) -> float | None:
        """Work submitted per time over what the cluster can do; None if all jobs are submitted at once."""
        return self.work_gpu_s / (cluster.gpus * self.span_s) if self.span_s > 0 else None


def summarize(trace: Trace) -> Summary:
    """The figures of a trace."""
    jobs = trace.jobs
    run_s = np.array([job.run_s for job in jobs])
    span_s = jobs[-1].submit_s - jobs[0].submit_s if jobs else 0.0
    early = sum(job.submit_s - jobs[0].submit_s < span_s / 10 for job in jobs)
    sizes = Counter(job.gpus for job in jobs)
    return Summary(
        source_format=trace.source_format,
        jobs=len(jobs),
        span_s=span_s,
        work_gpu_s=math.fsum(job.gpus * job.run_s for job in jobs),
        run=RunTimesAlone(
            float(np.median(run_s)), float(run_s.mean()), float(np.quantile(run_s, 0.99)), float(run_s.max())
        )
        if jobs
        else None,
        gpus=tuple(JobsOfSize(gpus, sizes[gpus]) for gpus in sorted(sizes)),
        users=len({job.user for job in jobs if job.user}),
        queues=len({job.queue for job in jobs if job.queue}),
        with_stages=sum(job.stages is not None for job in jobs),
        with_time_limit=sum(job.time_limit_s is not None for job in jobs),
        first_tenth_share=early / len(jobs) if span_s else None,
        held_back=sum(job.recorded is not None and job.recorded.held_back_s >= _HELD_BACK_S for job in jobs),
        rejected=len(trace.rejected),
        rejected_by=_by_column(trace.rejected),
    )


def _by_column(rejected: Iterable[Rejected]) -> tuple[RejectedRows, ...]:
    # A reason starts with the column at fault, see `formats.table.RowError`.
    columns = Counter(row.reason.partition(":")[0] for row in rejected)
    return tuple(RejectedRows(name, columns[name]) for name in sorted(columns, key=lambda name: (-columns[name], name)))
