"""`sexplsched report`: what GPUs were used for, from sacct and the audit file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
from msgspec import to_builtins

from explsched.cli.options import MOMENT, config_option
from explsched.cli.tables import Column, lines, room
from slurm_plugin import config as configuration
from slurm_plugin.audit.trail import AuditError, read
from slurm_plugin.audit.usage import BY, FIELDS, TOTAL, Run, Usage, run_of, usage
from slurm_plugin.client.cli import CliClient
from slurm_plugin.state.published import clock

_EXAMPLES = """\b
examples:
  sexplsched report --by user --since 7d
  sexplsched report --by sweep --since 2026-01-01 --until 2026-02-01 --csv >sweeps.csv

GPU-hours are those within the period. USEFUL is USED without LOST (work that preemption cost) and FAILED (runs that
failed). SAVED is what jobs that were stopped early would have used at most, until their time limit. Sweeps are known
where slurm.conf has AccountingStoreFlags=job_comment.
"""
_COLUMNS = tuple(name.replace("_gpu_h", "").replace("_", " ").upper() for name in Usage.__struct_fields__)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@click.command(epilog=_EXAMPLES)
@click.option("--by", type=click.Choice(tuple(BY)), default="user", show_default=True, help="A line for each of these.")
@click.option("--since", "since_s", type=MOMENT, default="1d", show_default=True, help="90m, 2h, 7d ago, or a date.")
@click.option("--until", "until_s", type=MOMENT, default="0s", help="As --since; without it until now.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--html", "form", flag_value="html", help="Print a page of HTML.")
@config_option
def report(by: str, since_s: float, until_s: float, form: str | None, config_path: Path | None) -> None:
    """Report GPU-hours, losses and waiting times."""
    if since_s >= until_s:
        raise click.BadParameter("must be later than --since", param_hint="--until")
    config = configuration.load(config_path)
    client = CliClient(config.slurm.timeout_s)
    runs, left_out = _runs(client.accounting(FIELDS, since_s, until_s))
    if left_out:
        click.echo(f"sexplsched: {left_out} rows of sacct could not be read and are left out", err=True)
    try:
        audited = list(read(config.audit.file, since_s))
    except AuditError as error:
        click.echo(f"sexplsched: nothing is known of early stops: {error}", err=True)
        audited = []
    found = usage(runs, audited, by, since_s, until_s)
    gpu_h = sum(node.gpus for node in client.nodes()) * (until_s - since_s) / 3600
    idle_gpu_h = max(0.0, gpu_h - found[-1].used_gpu_h)
    click.echo(_FORMS.get(form or "", _table)(found, by, (since_s, until_s), (gpu_h, idle_gpu_h)), nl=False)


def _runs(rows: Iterable[Sequence[str]]) -> tuple[list[Run], int]:
    runs, left_out = [], 0
    for row in rows:
        try:
            runs.append(run_of(row))
        except ValueError:  # told in one line for all of them
            left_out += 1
    return runs, left_out


_Period = tuple[float, float]
_Capacity = tuple[float, float]
"""GPU-hours that the nodes had in all, and those that nobody used."""


def _table(found: Sequence[Usage], by: str, period: _Period, capacity: _Capacity) -> str:
    layout = (Column(by.upper()), *(Column(title, ">") for title in _COLUMNS[1:]))
    rows = [[_rounded(value) for value in _values(line)] for line in found]
    told = f"{clock(period[0])} to {clock(period[1])}: {capacity[0]:.1f} GPU-hours in all, {capacity[1]:.1f} idle"
    return "\n".join([*lines(layout, rows, room()), told]) + "\n"


def _csv(found: Sequence[Usage], by: str, _period: _Period, _capacity: _Capacity) -> str:
    """A name that a spreadsheet would take for a formula gets an apostrophe in front."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((by, *Usage.__struct_fields__[1:]))
    for line in found:
        name, *numbers = _values(line)
        safe = f"'{name}" if str(name).startswith(_FORMULA) and name != "-" else name
        writer.writerow((safe, *("" if number is None else number for number in numbers)))
    return out.getvalue()


def _json(found: Sequence[Usage], by: str, period: _Period, capacity: _Capacity) -> str:
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


def _html(found: Sequence[Usage], by: str, period: _Period, capacity: _Capacity) -> str:
    import jinja2  # loads only where a page is wanted

    page = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(_PAGE)
    rows = [["" if value is None else _rounded(value) for value in _values(line)] for line in found]
    told = f"{clock(period[0])} to {clock(period[1])}"
    titles = (by.upper(), *_COLUMNS[1:])
    return page.render(titles=titles, rows=rows, period=told, all=f"{capacity[0]:.1f}", idle=f"{capacity[1]:.1f}")


def _values(line: Usage) -> list[object]:
    return [getattr(line, name) for name in Usage.__struct_fields__]


def _rounded(value: object) -> object:
    return f"{value:.2f}" if isinstance(value, float) else value


_FORMS = {"csv": _csv, "json": _json, "html": _html}
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
