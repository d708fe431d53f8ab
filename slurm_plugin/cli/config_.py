"""`sexplsched config`: check and show the configuration."""

from __future__ import annotations

from pathlib import Path

import click
import yaml

from explsched import strict_yaml
from explsched.cli.options import config_option
from explsched.cli.tables import Column, lines, room
from slurm_plugin import config as configuration

_EXAMPLES = """\b
examples:
  sexplsched config check
  sexplsched config example >explsched.yaml
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
