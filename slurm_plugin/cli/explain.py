"""`sexplsched explain JOBID` and `sexplsched plan`: what is known about one job, and what is planned for all."""

from __future__ import annotations

import json
from pathlib import Path

import click
from msgspec import to_builtins

from explsched.cli.options import config_option, json_option
from slurm_plugin.cli.session import current, fresh_option, tell_source
from slurm_plugin.state.published import Change, PlanLine, part

_EXPLAIN_EXAMPLES = """\b
example:
  sexplsched explain 4711
"""
_PLAN_EXAMPLES = """\b
examples:
  sexplsched plan
  sexplsched plan --fresh --json
"""


@click.command(epilog=_EXPLAIN_EXAMPLES)
@click.argument("job_id", type=int, metavar="JOBID")
@fresh_option
@json_option
@config_option
def explain(job_id: int, fresh: bool, as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  by name
    """Explain why a job waits or runs, and what it is worth."""
    state = current(config_path, fresh=fresh)
    found = state.explanation(job_id)
    if found is None and state.source == "daemon":  # submitted since then
        state = current(config_path, fresh=True)
        found = state.explanation(job_id)
    if found is None:
        raise click.ClickException(f"job {job_id} neither waits nor runs")
    if not found.is_steered:
        raise click.ClickException(found.sentences[0])
    if as_json:
        row = next(row for row in state.jobs if row.jobid == job_id)
        told = {**to_builtins(row), "explanation": found.sentences, "written_s": state.written_s}
        click.echo(json.dumps(told, indent=1))
        return
    click.echo("\n".join(found.sentences))
    tell_source(state, config_path)


@click.command(epilog=_PLAN_EXAMPLES)
@fresh_option
@json_option
@config_option
def plan(fresh: bool, as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  click passes by name
    """Show the plan and the changes it needs in Slurm.

    With a daemon these are those of its last pass, without one, or with --fresh, those that it would make now.
    Changes nothing.
    """
    state = current(config_path, fresh=fresh)
    lines, changes = part(state.plan, tuple[PlanLine, ...]), part(state.changes, tuple[Change, ...])
    if as_json:
        told = {"plan": to_builtins(lines), "changes": to_builtins(changes), "written_s": state.written_s}
        click.echo(json.dumps(told, indent=1))
        return
    for line in lines:
        click.echo(f"{line.kind:<8} {','.join(map(str, line.jobs))}  {line.text}")
    for change in changes:
        click.echo(f"change   {change.text}")
    if not changes and not any(line.kind in ("preempt", "resize", "stop") for line in lines):
        click.echo("Slurm is as the plan wants it.")
    tell_source(state, config_path)
