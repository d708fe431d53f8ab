"""`sexplsched config` and `sexplsched policies`: check and show the configuration, and the policies it may name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from textwrap import fill

import click
import yaml

from explsched import strict_yaml
from explsched.cli import config_option, json_option
from explsched.errors import PolicyError
from explsched.tables import Column, lines, room
from sched_policy import catalog
from sched_policy.policy import SchedulingPolicy, needs_of
from slurm_plugin import config as configuration

_EXAMPLES = """\b
examples:
  sexplsched config check
  sexplsched config example >explsched.yaml
"""
_INDENT = 13
_POLICIES_EXAMPLES = """\b
example:
  sexplsched policies
"""


@click.group(epilog=_EXAMPLES)
def config() -> None:
    """Check and show the configuration."""


@config.command()
@config_option
def check(config_path: Path | None) -> None:
    """Check the configuration file; every fault is named with its key and what is accepted."""
    configuration.load(config_path)
    path = configuration.find(config_path)
    click.echo(f"{path}: ok" if path else "no configuration file: the defaults hold")


@config.command()
@config_option
def show(config_path: Path | None) -> None:
    """Show the configuration in force, defaults included."""
    click.echo(yaml.safe_dump(configuration.plain(configuration.load(config_path)), sort_keys=False), nl=False)


@config.command()
def keys() -> None:
    """List every key with its meaning and default."""
    rows = (
        (key.name, f"{key.meaning}; {key.accepted} (default: {key.default})")
        for key in strict_yaml.keys(configuration.Config)
    )
    click.echo("\n".join(lines((Column("KEY"), Column("MEANING")), rows, room(), heading=False)))


@config.command()
def example() -> None:
    """Print a configuration file with every key, its meaning and its default, commented out."""
    click.echo(configuration.example(), nl=False)


@click.command(epilog=_POLICIES_EXAMPLES)
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
