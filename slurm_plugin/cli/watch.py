"""`sexplsched web` and `sexplsched top`: what the daemon publishes, in a browser and in a terminal."""

from __future__ import annotations

import getpass
import logging
import os
import secrets
from importlib.util import find_spec
from pathlib import Path

import click

from explsched import log
from explsched.cli import config_option
from explsched.errors import ExplschedError
from slurm_plugin import config as configuration

_EXAMPLES = """\b
examples:
  sexplsched web
  sexplsched web --gateway ~/.explsched/gateways/main
  sexplsched web --socket /run/explsched/web.sock --user-header X-Remote-User

The first prints an address with a token; whoever has it sees what you may read. From your own machine:

\b
  ssh -L 8642:127.0.0.1:8642 login-node
"""
_TOP_EXAMPLES = """\b
examples:
  sexplsched top
  sexplsched top --me --iterate 2

It needs Textual: pip install 'explsched[top]'. Keys are those of htop; F1 lists them.
"""
_SOCKET_MODE = 0o660


class WebError(ExplschedError):
    """The page cannot be served this way."""


class TopError(ExplschedError):
    """The screen cannot be shown."""


@click.command(epilog=_EXAMPLES)
@click.option("-p", "--port", default=8642, show_default=True, type=click.IntRange(1, 65535), help="On 127.0.0.1.")
@click.option("--socket", "path", type=click.Path(path_type=Path), help="A Unix socket instead, for a proxy.")
@click.option("--user-header", help="The proxy tells the user in this header; needs --socket.")
@click.option(
    "--gateway",
    "gateways",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Also show the inference gateway with this state directory; repeatable.",
)
@config_option
def web(
    port: int, path: Path | None, user_header: str | None, gateways: tuple[Path, ...], config_path: Path | None
) -> None:
    """Show cluster, queue and sweeps in a browser.

    The page changes nothing and asks Slurm nothing: it shows what the daemon publishes. Where Slurm hides other users'
    jobs (PrivateData), a user whom a proxy names sees only his own.
    """
    from aiohttp import web as aiohttp_web

    from slurm_plugin.web.server import Access, Page

    config = configuration.load(config_path)
    if user_header and path is None:
        raise WebError("--user-header needs --socket: on a port any user of this host could write that header")
    log.set_up("warning", None)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))
    token = "" if user_header else secrets.token_urlsafe(32)
    access = Access(token, user_header or "", frozenset() if path else hosts)
    query = "" if user_header else f"/login?token={token}"
    told = f"serving on {path}, log in at {query or '/'}" if path else f"open http://127.0.0.1:{port}{query}"
    app, where = (
        Page(config, access, gateways).app(),
        ({"path": str(path)} if path else {"host": "127.0.0.1", "port": port}),
    )
    previous = os.umask(0o777 & ~_SOCKET_MODE)
    try:
        aiohttp_web.run_app(app, print=lambda _banner: click.echo(told), access_log=None, **where)
    except OSError as error:
        raise WebError(f"cannot listen on {path or f'port {port}'}: {error.strerror}") from error
    finally:
        os.umask(previous)


@click.command(epilog=_TOP_EXAMPLES)
@click.option("-u", "--user", help="Only jobs of this user.")
@click.option("--me", is_flag=True, help="Only my jobs.")
@click.option("-i", "--iterate", default=5.0, show_default=True, type=click.FloatRange(min=1), help="Seconds.")
@config_option
def top(user: str | None, me: bool, iterate: float, config_path: Path | None) -> None:  # noqa: FBT001  by name
    """Watch queue, sweeps and GPUs in a terminal."""
    if find_spec("textual") is None:
        raise TopError("sexplsched top needs Textual: pip install 'explsched[top]'")
    from slurm_plugin.cli.screen import Screen
    from slurm_plugin.cli.status import current

    Screen(lambda: current(config_path, fresh=False), iterate, getpass.getuser() if me else user or "").run()
