"""`sexplsched gateway key` and `usage`: API keys and their usage."""

from __future__ import annotations

import json
import os
import pwd
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

import click
import msgspec

from explsched.cli import alternative, examples, json_option
from explsched.errors import ExplschedError
from explsched.tables import Column, csv_text, lines, room
from inference_gateway import key_file
from inference_gateway.cli import opened, opened_in_force, services_option
from inference_gateway.control.usage import DayUsage, read
from inference_gateway.errors import GatewayError
from inference_gateway.key_file import KeySection, new_key
from inference_gateway.replicas.reports import Tokens

_GROUPS = ("day", "key", "user", "account", "service")
_KEY_COLUMNS = (
    *("KEY", "USER", "ACCOUNT", "EXPIRES", "PRIORITY", "WEIGHT"),
    *("REQUESTS/MIN", "TOKENS/MIN", "TOKENS/DAY", "SERVICES"),
)
_COUNTS = ("requests", "prompt", "completion", "estimated")


@click.command(
    epilog=examples(
        "sexplsched gateway key --me --account physics --save ~/.gateway-key",
        "sexplsched gateway key ada -s services.yaml --expires 90",
        "sexplsched gateway key ada -s services.yaml --revoke",
    )
)
@click.argument("owner", required=False)
@click.option("--me", "who", flag_value="me", help="It is a key of your login, which also is its OWNER by default.")
@click.option("-A", "--account", default="", help="Slurm account that `usage` shows the key under.")
@click.option("-s", "--services", "services_path", type=click.Path(path_type=Path), help="Change this gateway's keys.")
@click.option("--expires", "days", type=click.IntRange(1, 3650), metavar="DAYS", help="Days until the key expires.")
@click.option("--save", type=click.Path(path_type=Path), help="Write the key to this new file, mode 0600.")
@alternative("--revoke", "action", "revoke", "Revoke the key of OWNER.")
@alternative("--list", "action", "list", "List the keys.")
@json_option
def key(
    *,
    owner: str | None,
    who: str | None,
    account: str,
    services_path: Path | None,
    days: int | None,
    save: Path | None,
    action: str | None,
    as_json: bool,
) -> None:
    """Create an API key for OWNER. Prints the key, and on standard error its line for the key file.

    The gateway stores only a hash, so the key cannot be shown again. With --services the line is added to the key file
    instead; `gateway reload` puts it in force.
    """
    path, batches = (None, None) if services_path is None else _keys_file(services_path)
    if action is not None and path is None:
        raise click.UsageError(f"--{action} needs --services")
    if as_json and action != "list":
        raise click.UsageError("--json needs --list")
    if action == "list" and path is not None:
        sections = key_file.sections(path)
        if as_json:
            click.echo(json.dumps({name: _as_json(name, one) for name, one in sections.items()}, indent=1))
            return
        columns = [Column(name) for name in _KEY_COLUMNS]
        rows = (
            (
                *(name, one.user or name, one.account, one.expires, one.priority, one.weight),
                *(one.requests_per_minute, one.tokens_per_minute, one.tokens_per_day, ",".join(one.services)),
            )
            for name, one in sections.items()
        )
        click.echo("\n".join(lines(columns, rows, room())))
        return
    user = _login() if who == "me" else ""
    owner = owner or user
    if not owner:
        raise click.UsageError("OWNER or --me is needed")
    if action == "revoke" and path is not None:
        key_file.revoke(path, owner)
        click.echo(f"{owner}: revoked; `gateway reload` puts it in force")
        _tell_of_files(batches, owner)
        return
    secret, line = new_key(owner, days, user, account)
    with _saved(save, secret):
        if path is not None:
            key_file.add(path, owner, line)
    if save is None:
        click.echo(secret)
    click.echo(f"{path}: {owner} is in" if path else f"line for the file of keys, below `keys:`\n{line}", err=True)
    _tell_of_files(batches, owner)


def _as_json(name: str, one: KeySection) -> dict[str, object]:
    """What is known of a key; its hash is nobody's business."""
    told: dict[str, object] = msgspec.to_builtins(one)
    del told["sha256"]
    return {**told, "user": one.user or name}


def _login() -> str:
    r"""The user's login as a key name: `CORP\alice` of a directory service becomes CORP.alice."""
    return re.sub(r"[^A-Za-z0-9_-]+", ".", pwd.getpwuid(os.getuid()).pw_name).strip("._-")


@contextmanager
def _saved(path: Path | None, secret: str) -> Iterator[None]:
    """Write a key to a new file with mode 0600; the file is removed again if the block fails."""
    if path is None:
        yield
        return
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secret + "\n")
    except OSError as error:
        raise GatewayError(f"{path}: {error.strerror}") from error
    try:
        yield
    except ExplschedError:
        path.unlink()
        raise


def _keys_file(services_path: Path) -> tuple[Path, Path]:
    """The key file of a gateway, and the directory of all its batches."""
    section, paths = opened(services_path)
    if section.listen.keys is None:
        raise GatewayError(f"{services_path}: listen.keys names no file of keys")
    return section.listen.keys, paths.batches


def _tell_of_files(batches: Path | None, owner: str) -> None:
    """Warn of what a key finds: files belong to its name, also where somebody else gets that name."""
    if batches is None:
        return
    try:
        is_there = (batches / owner).is_dir()
    except OSError as error:  # the gateway may be another user's, and the file of keys is changed by now
        click.echo(f"{batches / owner}: {error.strerror}: a new key would see what may be there", err=True)
        return
    if is_there:
        told = f"files and batches of earlier keys of this name stay in {batches / owner}; a new one sees them"
        click.echo(told, err=True)


@click.command(epilog=examples("sexplsched gateway usage -s services.yaml --by account --days 7 --csv"))
@services_option
@click.option(
    "--by", "by", multiple=True, type=click.Choice(_GROUPS), help="Group by; repeatable. Default: key, service."
)
@click.option("--days", default=30, show_default=True, type=click.IntRange(1, 400), help="Days to look back.")
@alternative("--csv", "form", "csv", "Print CSV.")
@alternative("--json", "form", "json", "Print JSON.")
def usage(services_path: Path, by: tuple[str, ...], days: int, form: str | None) -> None:
    """Show requests and tokens by key, service, user, account or day.

    Tokens are estimated where an answer has no counts: a stream without `usage`, or a client that disconnected early.
    """
    section, paths = opened_in_force(services_path)
    known = {} if section.listen.keys is None else key_file.sections(section.listen.keys)
    since = (date.fromtimestamp(time.time()) - timedelta(days=days - 1)).isoformat()  # a day may have 23 or 25 hours
    chosen = by or ("key", "service")
    sums = summed(read(paths, since).days, chosen, known)
    rows = [
        (*group, tokens.requests, tokens.prompt, tokens.completion, tokens.estimated)
        for group, tokens in sorted(sums.items())
    ]
    titles = (*chosen, *_COUNTS)
    if form == "csv":
        click.echo(csv_text([titles, *rows]), nl=False)
        return
    if form == "json":
        click.echo(json.dumps({"usage": [dict(zip(titles, row, strict=True)) for row in rows]}, indent=1))
        return
    columns = [*(Column(name.upper()) for name in chosen), *(Column(name.upper(), ">") for name in _COUNTS)]
    click.echo("\n".join(lines(columns, rows, room())))


def summed(
    entries: Iterable[DayUsage], by: tuple[str, ...], keys: Mapping[str, KeySection]
) -> dict[tuple[str, ...], Tokens]:
    """Tokens by group, whose parts are named by `by`. `keys` has the user and the account of each key.

    A key that is not there has its own name as user, and the account `-`.
    """
    found: dict[tuple[str, ...], Tokens] = {}
    for entry in entries:
        one, name = keys.get(entry.key), entry.key or "-"
        names = {"day": entry.day, "key": name, "service": entry.service}
        names |= {"user": (one and one.user) or name, "account": (one and one.account) or "-"}
        group = tuple(names[name] for name in by)
        found[group] = found.get(group, Tokens()) + entry.tokens
    return found
