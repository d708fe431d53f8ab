"""`sexplsched report` and `run-times`: what sacct and the audit file tell of jobs that have ended.

`report`: what GPUs were used for, by user, account, partition or sweep (`slurm_plugin.usage`). `run-times`: how well
the site's history tells how long jobs run.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from explsched.cli import alternative, config_option, json_option, moment
from explsched.errors import SlurmError
from explsched.tables import Column, csv_text, lines, room
from slurm_plugin import config as configuration
from slurm_plugin.audit_file import AuditError, read
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.notation import clock
from slurm_plugin.observation.requirements import most_shards_per_gpu
from slurm_plugin.usage import BY, COMMENTS, FIELDS, TOTAL, AccountedRun, UsageLine, run_of, usage

if TYPE_CHECKING:
    from slurm_plugin.observation.run_times import Coverage

_EXAMPLES = """\b
examples:
  sexplsched report --by user --since 7d
  sexplsched report --by sweep --since 2026-01-01 --until 2026-02-01 --csv >sweeps.csv

GPU-hours are those within the period. USEFUL is USED without LOST (work that preemption cost) and FAILED (runs that
failed); it includes jobs that reached their time limit or were cancelled. SAVED is the most that jobs stopped early
could still have used, up to their time limits. WAIT and P90 are the median and the 90th percentile of the hours that
jobs waited. Sweeps are listed as USER/SWEEP; they are known where slurm.conf has AccountingStoreFlags=job_comment.
"""
_END = FIELDS.index("End")
_S_PER_H = 3600.0
_WHOLE_FROM = 1000.0
"""People are told larger figures without decimals."""
_COLUMNS = tuple(name.replace("_gpu_h", "").replace("_", " ").upper() for name in UsageLine.__struct_fields__)
_SHORT = {"PREEMPTIONS": "PREEMPTED", "WAIT MEDIAN H": "WAIT", "WAIT P90 H": "P90", "ENERGY KWH": "KWH"}
"""Titles for a terminal of 80 columns."""


@click.command(epilog=_EXAMPLES)
@click.option("--by", type=click.Choice(tuple(BY)), default="user", show_default=True, help="Group by.")
@click.option(
    "--since",
    "since_s",
    type=moment,
    metavar="TIME",
    default="1d",
    show_default=True,
    help="90m, 2h, 7d ago, or a date.",
)
@click.option("--until", "until_s", type=moment, metavar="TIME", default="0s", help="As --since.  [default: now]")
@alternative("--csv", "form", "csv", "Print CSV.")
@alternative("--json", "form", "json", "Print JSON.")
@alternative("--html", "form", "html", "Print HTML.")
@config_option
def report(*, by: str, since_s: float, until_s: float, form: str | None, config_path: Path | None) -> None:
    """Report GPU-hours, losses and waiting times."""
    until_s = min(until_s, time.time())  # nothing was used in the future
    if since_s >= until_s:
        raise click.BadParameter("must be later than --since, which must be in the past", param_hint="--until")
    config = configuration.load(config_path)
    client = CliClient(config.slurm.timeout_s)
    rows = _with_comments(client.accounting(FIELDS, since_s, until_s), client)
    has_shards = any("gres/shard" in cell for row in rows for cell in row)
    runs, left_out = _runs(rows, _shards_per_gpu(client) if has_shards else 0)
    if left_out:
        click.echo(f"sexplsched: {left_out} rows of sacct could not be read and are left out", err=True)
    try:
        audited = list(read(config.audit.file, since_s))
    except AuditError as error:
        click.echo(f"sexplsched: nothing is known of early stops: {error}", err=True)
        audited = []
    found = usage(runs, audited, by, since_s, until_s)
    gpu_h = _gpu_h(client, since_s, until_s)
    idle_gpu_h = max(0.0, gpu_h - found[-1].used_gpu_h)
    click.echo(_FORMS.get(form or "", usage_table)(found, by, (since_s, until_s), (gpu_h, idle_gpu_h)), nl=False)


def _with_comments(rows: Sequence[Sequence[str]], client: CliClient) -> list[Sequence[str]]:
    """The rows with the comments of runs that have not ended: slurmdbd is told them at the end."""
    whole = [len(row) == len(FIELDS) and row[_END] == "Unknown" for row in rows]
    if not any(whole):
        return list(rows)
    try:
        present = {str(job.job_id): (job.admin_comment, job.comment) for job in client.jobs()}
    except SlurmError as error:
        click.echo(f"sexplsched: sweeps and preemptions of present jobs are not known: {error}", err=True)
        return list(rows)
    return [
        (*row[: -len(COMMENTS)], *present[row[0]]) if runs_on and row[0] in present else row
        for row, runs_on in zip(rows, whole, strict=True)
    ]


def _shards_per_gpu(client: CliClient) -> int:
    try:
        return most_shards_per_gpu(client.nodes())
    except SlurmError as error:
        click.echo(f"sexplsched: jobs on shards are left out, how many a GPU has is not known: {error}", err=True)
        return 0


def _gpu_h(client: CliClient, since_s: float, until_s: float) -> float:
    """GPU-hours that there were, told with what is not known of them."""
    try:
        history, why = client.gpu_history(since_s, until_s), "slurmdbd counts none"
    except SlurmError as error:
        history, why = [], str(error)
    if not history:
        click.echo(f"sexplsched: GPU-hours in all are those of the present nodes: {why}", err=True)
        history = [(since_s, until_s, sum(node.gpus for node in client.nodes()))]
    elif (first_s := min(start_s for start_s, _, _ in history)) > since_s:
        click.echo(
            f"sexplsched: GPU-hours in all are those since {clock(first_s)}: slurmdbd knows no earlier", err=True
        )
    return sum(gpus * (end_s - start_s) for start_s, end_s, gpus in history) / _S_PER_H


def _runs(rows: Iterable[Sequence[str]], shards_per_gpu: int) -> tuple[list[AccountedRun], int]:
    runs, left_out = [], 0
    for row in rows:
        try:
            runs.append(run_of(row, shards_per_gpu))
        except ValueError:  # told in one line for all of them
            left_out += 1
    return runs, left_out


_Period = tuple[float, float]
_Capacity = tuple[float, float]
"""GPU-hours that there were in all, and those that nobody used."""


def usage_table(found: Sequence[UsageLine], by: str, period: _Period, capacity: _Capacity) -> str:
    """The report as a table that fits the terminal."""
    layout = (Column(by.upper()), *(Column(_SHORT.get(title, title), ">") for title in _COLUMNS[1:]))
    rows = [[_rounded(value) for value in _values(line)] for line in found]
    told = f"{clock(period[0])} to {clock(period[1])}: {capacity[0]:.1f} GPU-hours in all, {capacity[1]:.1f} idle"
    return "\n".join([*lines(layout, rows, room()), *textwrap.wrap(told, room() or len(told))]) + "\n"


def usage_csv(found: Sequence[UsageLine], by: str, _period: _Period, _capacity: _Capacity) -> str:
    """The report as CSV; what is not known is empty."""
    return csv_text([(by, *UsageLine.__struct_fields__[1:]), *map(_values, found)])


def usage_json(found: Sequence[UsageLine], by: str, period: _Period, capacity: _Capacity) -> str:
    """The report as JSON."""
    told = {
        "by": by,
        "since_s": period[0],
        "until_s": period[1],
        "all_gpu_h": capacity[0],
        "idle_gpu_h": capacity[1],
        "lines": to_builtins(list(found[:-1])),
        TOTAL: to_builtins(found[-1]),
    }
    return json.dumps(told, indent=1) + "\n"


def usage_html(found: Sequence[UsageLine], by: str, period: _Period, capacity: _Capacity) -> str:
    """The report as a page of its own."""
    import jinja2  # loads only where a page is wanted

    page = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(_PAGE)
    rows = [["" if value is None else _rounded(value) for value in _values(line)] for line in found]
    told = f"{clock(period[0])} to {clock(period[1])}"
    titles = (by.upper(), *_COLUMNS[1:])
    return page.render(titles=titles, rows=rows, period=told, all=f"{capacity[0]:.1f}", idle=f"{capacity[1]:.1f}")


def _values(line: UsageLine) -> list[object]:
    return [getattr(line, name) for name in UsageLine.__struct_fields__]


def _rounded(value: object) -> object:
    return f"{value:.{0 if value >= _WHOLE_FROM else 2}f}" if isinstance(value, float) else value


_FORMS = {"csv": usage_csv, "json": usage_json, "html": usage_html}
_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<title>GPU usage, {{ period }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; }
table { border-collapse: collapse; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
tr:last-child { font-weight: 600; }
</style>
<h1>GPU usage</h1>
<p>{{ period }}: {{ all }} GPU-hours in all, {{ idle }} idle.
All but jobs, preemptions, waits (hours) and energy (kWh) are GPU-hours.</p>
<table>
<thead><tr>{% for title in titles %}<th scope="col">{{ title }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table>
</html>
"""


_RUN_TIMES_EXAMPLES = """\b
example:
  sexplsched run-times --since 60d

Each prediction uses only what was known at submission: the run times of similar jobs. TWICE: share of jobs that ran
between half and twice the predicted median. INSIDE: share between the predicted quantiles 0.1 and 0.9; 0.80 is
well calibrated. With run_times.history_days in explsched.yaml the daemon uses these predictions.
"""
_RUN_TIMES_COLUMNS = (Column("MATCHED BY"), *(Column(title, ">") for title in ("JOBS", "SHARE", "TWICE", "INSIDE")))


@click.command("run-times", epilog=_RUN_TIMES_EXAMPLES)
@click.option(
    "--since",
    "since_s",
    type=moment,
    metavar="TIME",
    default="30d",
    show_default=True,
    help="90m, 2h, 7d ago, or a date.",
)
@json_option
@config_option
def run_times(since_s: float, as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  click passes by name
    """Show how predictable the run times of past jobs were."""
    from slurm_plugin.observation.run_times import coverage, read_past  # loads numpy, which `report` does not need

    config = configuration.load(config_path)
    past = read_past(CliClient(config.slurm.timeout_s).accounting, since_s, time.time())
    found = coverage(past)
    if as_json:
        click.echo(json.dumps(to_builtins(found), indent=1))
        return
    click.echo("\n".join(lines(_RUN_TIMES_COLUMNS, (_coverage_cells(line) for line in found), room())))


def _coverage_cells(line: Coverage) -> tuple[object, ...]:
    parts = (line.share, line.within_twice, line.within_quantiles)
    return (line.alike_in or "nothing", line.jobs, *("-" if part is None else f"{part:.2f}" for part in parts))
