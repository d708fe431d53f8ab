"""`sexplsched config`: check and show the configuration."""

from __future__ import annotations

from pathlib import Path

import click
import yaml

from slurm_plugin import config as configuration
from slurm_plugin.cli.session import config_option


@click.group()
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
    for key, meaning, default in configuration.described():
        click.echo(f"{key:<34} {meaning} (default: {default})")
