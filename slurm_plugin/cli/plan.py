"""`sexplsched plan`: what the daemon would change now, and why."""

from __future__ import annotations

import json
from pathlib import Path

import click
from msgspec import to_builtins

from explsched.cli.options import config_option, json_option
from slurm_plugin.cli.session import clock, look

_EXAMPLES = """\b
example:
  sexplsched plan
"""


@click.command(epilog=_EXAMPLES)
@json_option
@config_option
def plan(as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  click passes by name
    """Show the plan for this moment and the changes it needs in Slurm. Changes nothing."""
    view = look(config_path)
    from slurm_plugin.steering.reconcile import SteeringLimits, changes  # loads with the view

    limits = SteeringLimits.of(view.config)
    wanted = changes(view.plan, view.seen, limits)
    if as_json:
        listed = [{"change": type(change).__name__, **to_builtins(change)} for change in wanted]
        click.echo(json.dumps({"plan": to_builtins(view.plan), "changes": listed}, indent=1))
        return
    for start in view.plan.starts:
        where = ", ".join(f"{share.node}:{share.gpus}" for share in start.placement)
        click.echo(f"start    {start.job_id}  on {where}: {start.reason}")
    for promise in view.plan.reservations:
        where = ", ".join(f"{share.node}:{share.gpus}" for share in promise.placement)
        click.echo(f"promise  {promise.job_id}  {clock(promise.start_s)} on {where}: {promise.reason}")
    for group in view.plan.groups:
        click.echo(f"group    {','.join(map(str, group.job_ids))}  {group.reason}")
    for preemption in view.plan.preemptions:
        click.echo(f"preempt  {preemption.job_id}  {preemption.reason}")
    for resize in view.plan.resizes:
        click.echo(f"resize   {resize.job_id}  {resize.request.total} GPUs: {resize.reason}")
    for stop in view.plan.stops:
        click.echo(f"stop     {stop.job_id}  {stop.reason}")
    for change in wanted:
        click.echo(f"change   {change}")
    if not (wanted or view.plan.preemptions or view.plan.resizes or view.plan.stops):
        click.echo("Slurm is as the plan wants it.")
