"""`sexplsched gateway key`: make an API key."""

from __future__ import annotations

import click

from inference_gateway.keys import new_key


@click.command()
@click.argument("owner")
def key(owner: str) -> None:
    """Make an API key for OWNER: the key on standard output, the line for the file of keys on standard error.

    The gateway keeps only a hash: the key cannot be shown again.
    """
    secret, line = new_key(owner)
    click.echo(secret)
    click.echo(f"line for the file of keys, below `keys:`\n{line}", err=True)
