"""Why a job waits or runs, `sexplsched explain`, and what follows from all of it, `sexplsched plan`."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from explsched.cli import config_option, json_option
from explsched.tables import printable
from slurm_plugin import config as configuration
from slurm_plugin.cli.cluster_state import NoJobError, current, fresh_option, job_number, tell_source
from slurm_plugin.config import Config
from slurm_plugin.state.published import Change, PlanLine, part

if TYPE_CHECKING:
    from slurm_plugin.client.changes import Change as SlurmChange
    from slurm_plugin.state.view import View

_EXPLAIN_EXAMPLES = """\b
example:
  sexplsched explain 4711
"""
_PLAN_EXAMPLES = """\b
examples:
  sexplsched plan
  sexplsched plan --fresh --json
"""
_NAMED = 5


@click.command(epilog=_EXPLAIN_EXAMPLES)
@click.argument("job_id", type=job_number, metavar="JOBID")
@fresh_option
@json_option
@config_option
def explain(job_id: int, fresh: bool, as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  by name
    """Explain why a job waits or runs, and its utility."""
    state = current(config_path, fresh=fresh)
    found = state.explanation(job_id)
    if found is None and (tasks := sorted(row.jobid for row in state.jobs if row.belongs_to == job_id)):
        named = ", ".join(map(str, tasks[:_NAMED])) + ", ..." * (len(tasks) > _NAMED)
        raise NoJobError(f"all tasks of array {job_id} have ids of their own by now: explain one of them ({named})")
    if found is None and state.source == "daemon":  # submitted since then
        state = current(config_path, fresh=True)
        found = state.explanation(job_id)
    if found is None:
        raise NoJobError(f"job {job_id} neither waits nor runs{_was(job_id, config_path)}")
    if as_json:
        row = next((to_builtins(row) for row in state.jobs if row.jobid == job_id), {"jobid": job_id})
        told = {**row, "explanation": found.sentences, "written_s": state.written_s}
        click.echo(json.dumps(told, indent=1))
        return
    click.echo("\n".join(map(printable, found.sentences)))
    tell_source(state, config_path)


def _was(job_id: int, config_path: Path | None) -> str:
    """Where to look for what became of a job that is gone."""
    from slurm_plugin.observation.sweep_record import read as notes  # where nothing failed it is not needed

    sweeps = {note.sweep for note in notes(configuration.load(config_path).progress.spool) if note.job == job_id}
    return "".join(f"; what became of it: sexplsched sweep show {shlex.quote(sweep)}" for sweep in sorted(sweeps))


def _changes(view: View, config: Config) -> Sequence[SlurmChange]:
    """What the daemon would write, with the preemptions that are underway where we may read of them.

    Only the daemon knows which jobs Slurm does not update for now, and when it computes priorities anew.
    """
    from slurm_plugin.steering.decide import Kept, changes
    from slurm_plugin.steering.preemption import FILE, PreemptionTracker
    from slurm_plugin.steering.reconcile import SteeringLimits

    factors = config.order.site_factor_file
    underway = factors.with_name(FILE)
    tracker = PreemptionTracker(config.preemption, underway if os.access(underway, os.R_OK) else None)
    now_s = view.seen.snapshot.now_s
    tracker.begin(now_s, config.interval_s, closed=frozenset(), clear_from_s=now_s)
    kept = Kept(tracker, view.seen.known.others_factors if os.access(factors, os.R_OK) else None)
    return changes(view.plan, view.seen, SteeringLimits.of(config), kept).all


@click.command(epilog=_PLAN_EXAMPLES)
@fresh_option
@json_option
@config_option
def plan(fresh: bool, as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  click passes by name
    """Show the plan and the changes it needs in Slurm.

    Shows the last pass of the daemon; without one, or with --fresh, what a pass would do now. Changes nothing.
    """
    state = current(config_path, fresh=fresh, wanted=_changes)
    lines, changes = part(state.plan, tuple[PlanLine, ...]), part(state.changes, tuple[Change, ...])
    if as_json:
        told = {"plan": to_builtins(lines), "changes": to_builtins(changes), "written_s": state.written_s}
        click.echo(json.dumps(told, indent=1))
        return
    for line in lines:
        click.echo(f"{line.kind:<8} {','.join(map(str, line.jobs))}  {printable(line.text)}")
    for change in changes:
        click.echo(f"change   {printable(change.text)}")
    if not changes and not any(line.kind in ("preempt", "resize", "stop") for line in lines):
        click.echo("Slurm matches the plan.")
    tell_source(state, config_path)
