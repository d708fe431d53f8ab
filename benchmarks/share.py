"""`explsched-share` against Muri-S (run times known) and Muri-L (unknown) on Muri's traces, under Muri's conventions.

Ratios above 1 say that ours is better. What the policy has been tuned on (`TUNED_ON`) is reported apart from the rest.
Every replay is a process of its own; CPU times are of whole processes, one after the other in one run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path

import click
from msgspec import Struct, convert, to_builtins
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.muri_parity import ATTRIBUTION, Replay, run_ours

TRACES = ("trace1", "trace1_pr", "trace2", "trace2_pr")
TUNED_ON = ("trace1", "trace1_pr")
RIVALS = {"known": ("muri-s", "plain"), "learnt": ("muri-l", "learnt")}
"""What is known of run times -> the rival that knows as much, and our variant of `muri_run`."""


class Row(Struct, frozen=True):
    """One trace under ours and the rival. Ratios are the rival's figure over ours; `cpu_ratio` is ours over theirs."""

    trace: str
    durations: str
    rival: str
    avg_jct_s: float
    avg_jct_ratio: float
    makespan_ratio: float
    p99_jct_ratio: float
    cpu_ratio: float

    @classmethod
    def of(cls, trace: str, durations: str, ours: Replay, theirs: Replay) -> Row:
        """The row of two replays."""
        ratio = {name: theirs.figures[name] / ours.figures[name] for name in ("avg_jct_s", "makespan_s", "p99_jct_s")}
        return cls(
            trace,
            durations,
            RIVALS[durations][0],
            round(ours.figures["avg_jct_s"], 1),
            round(ratio["avg_jct_s"], 4),
            round(ratio["makespan_s"], 4),
            round(ratio["p99_jct_s"], 4),
            round(ours.cpu_s / theirs.cpu_s, 2),
        )


def geometric_means(rows: Sequence[Row]) -> Mapping[str, float]:
    """Of the ratios of mean JCT, by "known" or "learnt" and whether the policy was tuned on the traces."""
    sets = {"tuned on": True, "held out": False}
    means: dict[str, float] = {}
    for durations in RIVALS:
        for name, tuned in sets.items():
            logs = [
                log(row.avg_jct_ratio)
                for row in rows
                if row.durations == durations and (row.trace in TUNED_ON) is tuned
            ]
            if logs:
                means[f"{durations}, {name}"] = round(exp(sum(logs) / len(logs)), 4)
    return means


@click.command()
@click.option("--traces", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", default=",".join(TRACES), show_default=True, help="Comma-separated names of traces.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
@click.option("--store", type=click.Path(dir_okay=False, path_type=Path), help="Add the rows to this file.")
def main(traces: Path, only: str, as_json: bool, store: Path | None) -> None:  # noqa: FBT001  click passes by name
    """Replay the traces under ours and its rivals; print the ratios."""
    names = only.split(",")
    missing = [name for name in names if not (traces / f"{name}.csv").exists()]
    if missing:
        raise click.UsageError(f"--only: no file {missing[0]}.csv in {traces}")
    todo = [(name, durations) for name in names for durations in RIVALS]
    rows = []
    for name, durations in track(todo, console=Console(stderr=True), disable=as_json):
        path = traces / f"{name}.csv"
        rival, variant = RIVALS[durations]
        rows.append(Row.of(name, durations, run_ours(path, "explsched-share", variant), run_ours(path, rival, "plain")))
    if store and store.exists():  # rows of earlier runs that this one does not have
        known = {(row.trace, row.durations) for row in rows}
        earlier = [convert(row, Row) for row in json.loads(store.read_text())["rows"]]
        rows += [row for row in earlier if (row.trace, row.durations) not in known]
    rows.sort(key=lambda row: (row.durations, row.trace))
    report = {"attribution": ATTRIBUTION, "rows": to_builtins(rows), "geometric_means": geometric_means(rows)}
    if store:
        store.write_text(json.dumps(report, indent=1) + "\n")
    if as_json:
        click.echo(json.dumps(report, indent=1))
        return
    table = Table(title="explsched-share, 8 nodes x 8 GPUs, Muri's conventions")
    for column in ("trace", "run times", "rival", "JCT ratio", "makespan ratio", "p99 ratio", "CPU, ours / rival"):
        table.add_column(column, no_wrap=True)
    for row in rows:
        ratios = (row.avg_jct_ratio, row.makespan_ratio, row.p99_jct_ratio, row.cpu_ratio)
        table.add_row(row.trace, row.durations, row.rival, *(f"{value:.3f}" for value in ratios))
    Console(width=120).print(table)
    for name, mean in report["geometric_means"].items():
        click.echo(f"mean JCT, geometric mean, {name}: {mean:.3f}")


if __name__ == "__main__":
    main()
