"""The queue, sweeps and GPUs in a browser: `sexplsched web`."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click

from explsched import log
from explsched.cli import config_option
from explsched.errors import ExplschedError
from slurm_plugin import config as configuration

_WEB_EXAMPLES = """\b
examples:
  sexplsched web
  sexplsched web --gateway ~/.explsched/gateway/main
  sexplsched web --socket /run/explsched-web/web.sock --user-header X-Remote-User

The first prints a URL with a token. Anyone who has it sees what you can see. From your own machine:

\b
  ssh -L 8642:127.0.0.1:8642 login-node
"""
_SOCKET_MODE = 0o660


class WebError(ExplschedError):
    """The page cannot be served this way."""


@click.command(epilog=_WEB_EXAMPLES)
@click.option("-p", "--port", default=8642, show_default=True, type=click.IntRange(1, 65535), help="Port on 127.0.0.1.")
@click.option(
    "--socket", "path", type=click.Path(path_type=Path), help="Listen on this Unix socket instead, for a proxy."
)
@click.option("--user-header", help="Header in which the proxy names the user; needs --socket.")
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

    The page is read-only. It shows the state that the daemon publishes, without calling Slurm. Where PrivateData hides
    other users' jobs, users whom a proxy has authenticated see only their own.
    """
    import secrets

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
