"""`sexplsched policies`: the catalogue."""

from __future__ import annotations

import json
import shutil
from textwrap import fill

import click

from explsched.cli.options import json_option
from explsched.errors import PolicyError
from sched_policy import catalog
from sched_policy.policy import SchedulingPolicy, needs_of

_INDENT = 13
_EXAMPLES = """\b
example:
  sexplsched policies
"""


@click.command(epilog=_EXAMPLES)
@json_option
def policies(as_json: bool) -> None:  # noqa: FBT001  click passes by name
    """List the scheduling policies and the data they need."""
    known: dict[str, SchedulingPolicy] = {}
    for name in catalog.names():
        try:
            known[name] = catalog.build(name)
        except PolicyError as error:  # a package of somebody else's
            click.echo(f"sexplsched: {error}", err=True)
    if as_json:
        click.echo(json.dumps({name: _as_json(policy) for name, policy in known.items()}, indent=1))
        return
    for name, policy in known.items():
        click.echo(_wrapped(f"{name:<{_INDENT}}{policy.summary}"))
        for need in needs_of(policy):
            click.echo(_wrapped(f"{'':{_INDENT}}needs {need.data}; without: {need.without}"))


def _wrapped(line: str) -> str:
    """The line, wrapped to the width of the terminal below its second column."""
    return fill(line, shutil.get_terminal_size().columns, subsequent_indent=" " * (_INDENT + 2))


def _as_json(policy: SchedulingPolicy) -> dict[str, object]:
    needs = [{"data": need.data, "without": need.without} for need in needs_of(policy)]
    return {"summary": policy.summary, "needs": needs}
