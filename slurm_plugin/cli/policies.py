"""`sexplsched policies`: the catalogue."""

from __future__ import annotations

import json

import click

from explsched.cli.options import json_option
from explsched.cli.tables import Column, lines, room
from explsched.errors import PolicyError
from sched_policy import catalog

_EXAMPLES = """\b
example:
  sexplsched policies
"""


@click.command(epilog=_EXAMPLES)
@json_option
def policies(as_json: bool) -> None:  # noqa: FBT001  click passes by name
    """List the scheduling policies, one line each."""
    known = {}
    for name in catalog.names():
        try:
            known[name] = catalog.build(name).summary
        except PolicyError as error:  # a package of somebody else's
            click.echo(f"sexplsched: {error}", err=True)
    if as_json:
        click.echo(json.dumps(known, indent=1))
        return
    columns = (Column("POLICY"), Column("MEANING"))
    click.echo("\n".join(lines(columns, known.items(), room(), heading=False)))
