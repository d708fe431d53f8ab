"""Which files belong where."""

from __future__ import annotations

import sysconfig
from importlib.resources import files
from pathlib import Path

from msgspec import Struct, field

from explsched.job_options import lua
from slurm_plugin import config_keys
from slurm_plugin.config import DEFAULT_PATH
from slurm_plugin.manual import book, completion

_PACKAGED = Path("/usr/lib/explsched")
"""Where the Debian package has its Python environment."""


def _prefix() -> Path:
    return Path("/usr") if _commands() == _PACKAGED / "bin" else Path("/usr/local")


def _commands() -> Path:
    return Path(sysconfig.get_path("scripts"))


class Places(Struct, frozen=True):
    """Where the machine wants things: below `prefix` what we own, below /etc what the admin owns.

    `commands` is the directory of `sexplschedd`, which the service starts.
    """

    prefix: Path = field(default_factory=_prefix)
    commands: Path = field(default_factory=lambda: Path("/usr/bin") if _prefix() == Path("/usr") else _commands())


class Item(Struct, frozen=True):
    """A file that belongs on the machine: its path there, and its text.

    `is_site_owned` is true for the file that every site changes: that it differs is no fault.
    """

    path: Path
    text: str
    is_site_owned: bool = False


def items(places: Places) -> tuple[Item, ...]:
    """Every file, in the order in which they are reported."""
    lib, share = places.prefix / "lib", places.prefix / "share"
    unit = _shipped("sexplschedd.service").replace("/usr/bin/sexplschedd", str(places.commands / "sexplschedd"))
    pages = sorted(book.render_all().items())
    completions = sorted(completion.scripts().items())
    return (
        Item(DEFAULT_PATH, config_keys.example(), is_site_owned=True),
        Item(Path("/etc/logrotate.d/explsched"), _shipped("explsched.logrotate")),
        Item(lib / "systemd/system/sexplschedd.service", unit),
        Item(lib / "sysusers.d/explsched.conf", _shipped("explsched.sysusers")),
        Item(lib / "tmpfiles.d/explsched.conf", _shipped("explsched.tmpfiles")),
        Item(share / "explsched/job_submit.lua", job_submit()),
        Item(share / "explsched/explsched.yaml", config_keys.example()),
        *(Item(share / f"man/man{name[-1]}" / name, text) for name, text in pages),
        *(Item(share / "bash-completion/completions" / name, text) for name, text in completions),
    )


def job_submit() -> str:
    """The text of job_submit.lua, which slurmctld runs."""
    return lua.filled(_shipped("job_submit.lua.in"))


def _shipped(name: str) -> str:
    return (files("slurm_plugin") / "etc" / name).read_text(encoding="utf-8")
