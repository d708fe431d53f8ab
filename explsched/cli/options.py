"""Options that commands share. Light: commands that do not look at Slurm must not pay for what looking takes."""

from __future__ import annotations

from pathlib import Path

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
config_option = click.option(
    "-f", "--config", "config_path", type=click.Path(path_type=Path), help="Configuration file.", show_envvar=True
)
