"""`sexplsched admin`: what belongs on a machine besides the commands."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_plugin.installation import change, compare, hints, layout
from slurm_plugin.manual import book

_EXAMPLES = """\b
examples:
  sexplsched admin install --check
  sexplsched admin install
  sexplsched admin uninstall
  sexplsched admin man --out build/man

\b
files:
  /etc/explsched/explsched.yaml      configuration; never overwritten once it is changed
  /var/lib/explsched/installed.json  what `sexplsched admin install` has written
"""

_root = click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="/",
    show_default=True,
    help="Root directory of the machine, such as an image that is being made.",
)


def _absolute(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a place that would depend on where the command is given. A click callback."""
    if path is not None and not path.is_absolute():
        raise click.BadParameter(f"{path}: must be absolute, such as /usr/local")
    return path


_place = click.Path(file_okay=False, path_type=Path)


@click.group(epilog=_EXAMPLES)
def admin() -> None:
    """Install and remove the service, manual, completion and example."""


@admin.command()
@_root
@click.option("--prefix", type=_place, callback=_absolute, help="Where our own files go.  [default: /usr/local]")
@click.option("--commands", type=_place, callback=_absolute, help="Directory of sexplschedd.  [default: its own]")
@click.option("--check", "mode", flag_value="check", help="Tell what is missing or differs; exit status 1 then.")
@click.pass_context
def install(context: click.Context, root: Path, prefix: Path | None, commands: Path | None, mode: str | None) -> None:
    """Put service, system user, spool, log rotation, man pages, completion and an example configuration in place.

    Nothing is started, and Slurm's configuration is not touched: what only an admin can do is told. A file that was
    changed is kept. Installing twice is the same as once.
    """
    places = layout.Places()
    places = layout.Places(prefix or places.prefix, commands or places.commands)
    found = compare.findings(layout.items(places), root)
    faults = [finding for finding in found if finding.is_fault]
    if mode == "check":
        for finding in faults:
            click.echo(f"{finding.item.path}: {finding.state.value}")
        click.echo(f"{len(found) - len(faults)} of {len(found)} files as they should be")
    else:
        for line in change.install(found, root):
            click.echo(line)
    for hint in hints.hints(root, places):
        click.echo(f"hint: {hint}")
    if mode == "check":
        context.exit(1 if faults else 0)
    click.echo("to start: " + "\n          ".join(hints.STEPS))


@admin.command()
@_root
def uninstall(root: Path) -> None:
    """Remove what `install` has put in place, and nothing else; what was changed since is kept and named."""
    lines = list(change.uninstall(root))
    for line in lines:
        click.echo(line)
    if not lines:
        click.echo("nothing here was installed by `sexplsched admin install` (a Debian package: apt remove explsched)")


@admin.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Directory for the pages.")
def man(out: Path) -> None:
    """Write the man pages, made from the commands and the configuration model."""
    pages = book.render_all()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write: {error}") from error
    click.echo(f"{len(pages)} pages in {out}")
