"""Replays Muri's traces under Muri's conventions and compares with the published figures.

Every replay is a process of its own; `cpu_s` is its whole CPU time, start and imports included. With `--original DIR`
(a checkout of Rivendile/Muri) the original simulator runs beside it, and `cpu_ratio` says how many times more it takes.
It needs hours for some replays: `--first N` cuts the traces down, and the reference is then the original itself, as it
is for traces of `--only` of which no figures are published.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

METRICS = ("avg_jct_s", "makespan_s", "p99_jct_s")
NODES, GPUS_PER_NODE = 8, 8
_PUBLISHED = Path(__file__).with_name("muri_published.json")
ATTRIBUTION = (
    'Muri traces: Rivendile/Muri, Apache License 2.0. Cite: "Multi-Resource Interleaving for Deep Learning Training", '
    "SIGCOMM 2022.",
    '"Philly traces" (the arrivals derive from them), (c) Microsoft Corporation, '
    "https://github.com/msr-fiddle/philly-traces, licensed under CC BY 4.0 "
    "(https://creativecommons.org/licenses/by/4.0/). Changes: arrivals taken over into another trace by third parties; "
    'unchanged by us. Cite: M. Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training '
    'Workloads", USENIX ATC 2019.',
)
_THEMIS = (
    "Themis: no solver; Newton's method for the least maximum of rho, analytic centre of the optimal shares, ties "
    "broken by a factor 1 +- 1e-5 from a hash of the job id. The published figures follow one of many optima (ECOS). "
    "early-shares: gpus^0.77 iteration_s^1.02, what SCS 2.1.4, the original's second solver, returns for the 5200 to "
    "5640 jobs of trace2_pr, measured on its cone program; nearly the reverse of the optimal order. The published "
    "figures of trace2_pr follow it, though ECOS 2.0.14 fails there in part of the rounds only; other traces do not. "
    "whole-shares: all shares 1, what the original takes when both solvers fail."
)
_ORIGINAL_NAMES = {
    "srtf": "shortest",
    "srsf": "shortest-gpu",
    "tiresias": "dlas-gpu",
    "antman": "antman",
    "themis": "themis",
    "muri-s": "multi-resource-blossom-same-gpu",
    "muri-l": "multi-resource-blossom-same-gpu-unaware",
}


# Autopack is the original's default, but not used for the published figures of these traces. Early shares are what its
# Themis takes when its first solver fails, whole shares when the second fails, too.
_VARIANTS = {
    "muri-s": ("plain", "autopack"),
    "muri-l": ("plain", "autopack"),
    "themis": ("plain", "early-shares", "whole-shares"),
}
_OF_ORIGINAL = ("plain", "autopack")
"""What the original can be told to do."""


@dataclass(frozen=True, slots=True)
class Row:
    """One replay. Deviations are from the reference, in percent; `jobs` is 0 for a whole trace."""

    policy: str
    trace: str
    variant: str
    jobs: int
    reference: str
    avg_jct_s: float
    makespan_s: float
    p99_jct_s: float
    avg_jct_off_pct: float
    makespan_off_pct: float
    p99_jct_off_pct: float | None
    events: int
    cpu_s: float
    original_cpu_s: float | None = None
    cpu_ratio: float | None = None


@click.command()
@click.option("--traces", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--policies", default="", help="Comma-separated; all by default.")
@click.option("--only", default="", help="Comma-separated names of traces; all by default.")
@click.option("--variants", default="", help="Comma-separated, such as plain,in-order; all by default.")
@click.option("--original", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Checkout of Muri.")
@click.option("--first", default=0, type=click.IntRange(0), help="Only so many jobs of each trace; needs --original.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
@click.option("--store", type=click.Path(dir_okay=False, path_type=Path), help="Add the rows to this file.")
def main(
    traces: Path,
    policies: str,
    only: str,
    variants: str,
    original: Path | None,
    first: int,
    as_json: bool,  # noqa: FBT001  click passes by name
    store: Path | None,
) -> None:
    """Replay, compare, print a table and JSON."""
    published = _published()
    known = sorted({trace for _, trace, _ in published})
    names = only.split(",") if only else known
    unpublished = [trace for trace in names if trace not in known]
    if original is None and (first or unpublished):
        option = "--first" if first else f"--only {','.join(unpublished)}"
        raise click.UsageError(
            f"{option} needs --original: the published figures are of all jobs of {', '.join(known)}"
        )
    missing = [trace for trace in names if not (traces / f"{trace}.csv").exists()]
    if missing:
        raise click.UsageError(f"no file {missing[0]}.csv in {traces}")
    by_original = [
        (policy, trace, variant)
        for trace in unpublished
        for policy in _ORIGINAL_NAMES
        for variant in _VARIANTS.get(policy, ("plain",))
    ]
    todo = [
        (policy, trace, variant)
        for policy, trace, variant in (*published, *by_original)
        if (not policies or policy in policies.split(",")) and trace in names
        if (not variants or variant in variants.split(","))
        if not (first or trace in unpublished) or variant in _OF_ORIGINAL
    ]
    if not todo:
        raise click.UsageError(f"nothing to do; policies: {', '.join(_ORIGINAL_NAMES)}")
    rows: list[Row] = []
    with (
        Progress(console=Console(stderr=True), disable=as_json) as progress,
        tempfile.TemporaryDirectory() as scratch,
    ):
        bar = progress.add_task("replays", total=len(todo))
        for policy, trace, variant in todo:
            progress.update(bar, description=f"{policy} {trace}")
            path = _cut(traces / f"{trace}.csv", first, Path(scratch))
            ours = run_ours(path, policy, variant)
            # The original decides itself when its solver has failed; there is no other run to compare such shares with.
            theirs = _theirs(original, path, policy, variant) if original and not variant.endswith("-shares") else None
            what = policy, trace, variant
            reference = theirs.figures if theirs and (first or trace in unpublished) else published[what]
            rows.append(_row((*what, first), ours, theirs, reference))
            progress.advance(bar)
    if not as_json:
        Console(width=160).print(_table(rows))
    report = _report(rows)
    if store:
        store.write_text(json.dumps(_merged(store, report), indent=1) + "\n")
    print(json.dumps(report))


def _published() -> dict[tuple[str, str, str], Mapping[str, float]]:
    """The figures to compare with, by policy, trace and variant. Of ablations no p99 is published."""
    known = json.loads(_PUBLISHED.read_text())
    plain = {
        (row["policy"], row["trace"], variant): row
        for row in known["figures"]
        for variant in _VARIANTS.get(row["policy"], ("plain",))
    }
    return plain | {(row["policy"], row["trace"], row["variant"]): row for row in known["ablations"]}


@dataclass(frozen=True, slots=True)
class Replay:
    """The metrics of a replay and the CPU time of its process."""

    figures: Mapping[str, float]
    cpu_s: float


def _cut(trace: Path, first: int, scratch: Path) -> Path:
    """The trace itself, or a file with its header and first jobs."""
    if not first:
        return trace
    cut = scratch / trace.name
    cut.write_text("\n".join(trace.read_text().splitlines()[: first + 1]) + "\n")
    return cut


def run_ours(trace: Path, policy: str, variant: str) -> Replay:
    """Replay a trace in a process of its own; `variant` is one of `muri_run`.

    Raises `click.ClickException` if it fails; why, it has said itself.
    """
    argv = [sys.executable, "-m", "benchmarks.muri_run", str(trace), str(NODES), str(GPUS_PER_NODE), policy, variant]
    with tempfile.TemporaryFile("w+") as output:
        try:
            cpu_s = _cpu_s(argv, Path(__file__).parent.parent, output.fileno())
        except subprocess.CalledProcessError as error:
            raise click.ClickException(f"{trace} under {policy}: exit status {error.returncode}") from error
        output.seek(0)
        return Replay(json.load(output), cpu_s)


def _theirs(checkout: Path, trace: Path, policy: str, variant: str) -> Replay:
    """The original on the same trace. Raises `RuntimeError` if it did not finish all jobs."""
    with tempfile.TemporaryDirectory() as scratch:
        argv = [sys.executable, "run_sim.py", "--cluster_spec=cluster_spec/n8g8.csv", "--print", "--scheme=yarn"]
        argv += [f"--trace_file={trace.resolve()}", f"--schedule={_ORIGINAL_NAMES[policy]}", f"--log_path={scratch}"]
        argv += ["--multi_resource=4", f"--autopack={variant == 'autopack'}"]
        with Path(scratch, "out").open("w") as output:
            cpu_s = _cpu_s(argv, checkout / "simulator", output.fileno())
        with Path(scratch, "job.csv").open(newline="") as lines:
            done = list(csv.DictReader(lines))
        if len(done) != len(trace.read_text().splitlines()) - 1:
            raise RuntimeError(f"the original did not finish all jobs of {trace} under {policy}")
    jct_s = sorted(float(row["end_time"]) - float(row["submit_time"]) for row in done)
    values = (sum(jct_s) / len(jct_s), max(float(row["end_time"]) for row in done), jct_s[int(0.99 * len(jct_s))])
    return Replay(dict(zip(METRICS, values, strict=True)), cpu_s)


def _cpu_s(argv: Sequence[str], directory: Path, stdout: int) -> float:
    """User and system time of a process. Raises `CalledProcessError` if it fails."""
    process = subprocess.Popen(argv, cwd=directory, stdout=stdout)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, argv)
    return usage.ru_utime + usage.ru_stime


def _row(what: tuple[str, str, str, int], ours: Replay, theirs: Replay | None, reference: Mapping[str, float]) -> Row:
    off = {
        metric: round(100.0 * (ours.figures[metric] / reference[metric] - 1.0), 4)
        for metric in METRICS
        if metric in reference
    }
    theirs_s = round(theirs.cpu_s, 2) if theirs else None
    ratio = round(theirs.cpu_s / ours.cpu_s, 1) if theirs else None
    source = "original" if theirs and reference is theirs.figures else "published"
    return Row(
        *what,
        reference=source,
        avg_jct_s=round(ours.figures["avg_jct_s"], 2),
        makespan_s=round(ours.figures["makespan_s"], 2),
        p99_jct_s=round(ours.figures["p99_jct_s"], 2),
        avg_jct_off_pct=off["avg_jct_s"],
        makespan_off_pct=off["makespan_s"],
        p99_jct_off_pct=off.get("p99_jct_s"),
        events=int(ours.figures["events"]),
        cpu_s=round(ours.cpu_s, 3),
        original_cpu_s=theirs_s,
        cpu_ratio=ratio,
    )


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="Muri's conventions, 8 nodes x 8 GPUs; deviation from the reference in %")
    for name in ("policy", "trace", "variant", "reference"):
        table.add_column(name, no_wrap=True)
    for name in ("avg JCT s", "makespan s", "p99 JCT s", "off %", "CPU s", "original / ours"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        p99_off = "-" if row.p99_jct_off_pct is None else f"{row.p99_jct_off_pct:+.2f}"
        off = f"{row.avg_jct_off_pct:+.2f} / {row.makespan_off_pct:+.2f} / {p99_off}"
        ratio = "" if row.cpu_ratio is None else f"{row.cpu_ratio:.1f}x"
        figures = (f"{value:.0f}" for value in (row.avg_jct_s, row.makespan_s, row.p99_jct_s))
        table.add_row(row.policy, row.trace, row.variant, row.reference, *figures, off, f"{row.cpu_s:.2f}", ratio)
    return table


def _report(rows: Sequence[Row]) -> dict[str, object]:
    return {
        "published": json.loads(_PUBLISHED.read_text())["source"],
        "attribution": ATTRIBUTION,
        "themis": _THEMIS,
        "rows": [asdict(row) for row in rows],
    }


def _merged(store: Path, report: dict[str, object]) -> dict[str, object]:
    """The report with the rows of an earlier one that it does not have itself."""
    if not store.exists():
        return report
    rows = {_identity(row): row for row in json.loads(store.read_text())["rows"]}
    new = report["rows"]
    assert isinstance(new, list)  # noqa: S101  built above
    rows.update({_identity(row): row for row in new})
    return {**report, "rows": list(rows.values())}


def _identity(row: Mapping[str, object]) -> tuple[object, ...]:
    """What is replaced when it is measured again; figures with and without the original stay apart."""
    return row["policy"], row["trace"], row["variant"], row["jobs"], row["cpu_ratio"] is None


if __name__ == "__main__":
    main()
