"""Options that commands share. Light: commands that do not look at Slurm must not pay for what looking takes."""

from __future__ import annotations

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
