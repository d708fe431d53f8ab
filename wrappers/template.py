"""Renders the job scripts of `sbatch_templates`.

A value lands either in an `#SBATCH` line, where only plain words are accepted, or in the script's shell text, where it
is quoted. So nothing in a value is ever executed.
"""

from __future__ import annotations

import itertools
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from explsched.checkpoint import DEFAULT_SIGNAL
from explsched.job_options.table import CHECKPOINT
from sbatch_templates import shell_environment

_CHECKPOINT_SIGNAL = f"${{{CHECKPOINT.variable}:-{DEFAULT_SIGNAL}}}"
"""Shell, for double quotes: the signal that asks the job for a checkpoint."""
_RENDEZVOUS_PORT = """\
# A free port of the job's first node, where this runs; gateways' replicas and outgoing connections have higher ones.
for _ in {1..100}; do
  port=$((10000 + RANDOM % 10000))
  (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null || break
done
export EXPLSCHED_RENDEZVOUS_PORT="${EXPLSCHED_RENDEZVOUS_PORT:-$port}"\
"""
"""Shell, before a job's step: where its processes meet."""
SXRUN = f'"$(command -v sxrun || echo {shlex.quote(str(Path(sys.executable).with_name("sxrun")))})"'
"""Shell: the command of the job's PATH, or where that has none, as with `--export=NONE`, that of this installation."""
_PLAIN = re.compile(r"[\w.:@%+-]*")
_KEY = re.compile(r"[A-Za-z_][\w.-]*")


class TemplateError(Exception):
    """The template does not exist, or was given parameters it does not accept."""


def names() -> list[str]:
    """The templates for job scripts of one's own: those that declare their parameters in a .toml file."""
    return sorted(f.name[:-5] for f in resources.files("sbatch_templates").iterdir() if f.name.endswith(".toml"))


def render(
    name: str,
    parameters: Mapping[str, str],
    grid: Mapping[str, Sequence[str]],
    command: Sequence[str],
    checkpoint: str | None = None,
) -> str:
    """The job script of a template (by name, or a path to a .j2 file beside its .toml).

    `grid` maps a parameter of the command to the values a sweep tries; all combinations are run. Every value that the
    template inserts is quoted as one word of shell. `checkpoint` is the signal that the job's processes are to get.
    Raises `TemplateError` with what is accepted.
    """
    try:
        import jinja2

        environment = shell_environment()
    except ImportError as error:
        raise TemplateError("templates need Jinja2: pip install jinja2") from error
    text, declared = _load(name)
    unknown = sorted(set(parameters) - set(declared.defaults))
    if unknown:
        raise TemplateError(
            f"template {name!r} has no parameter {unknown[0]!r} (known: {', '.join(declared.defaults)})"
        )
    if grid and not declared.sweeps:
        raise TemplateError(f"template {name!r} runs one command: it takes no --param-grid")
    if checkpoint and declared.signals and checkpoint not in declared.signals:
        raise TemplateError(
            f"{CHECKPOINT.flag} {checkpoint}: template {name!r} passes on {' and '.join(declared.signals)} alone"
        )
    values = {**declared.defaults, **parameters}
    missing = sorted(key for key in declared.required if not values.get(key))
    if missing:
        raise TemplateError(
            f"template {name!r} needs --param {missing[0]}=VALUE (known: {', '.join(declared.defaults)})"
        )
    for key, value in values.items():
        if not _PLAIN.fullmatch(value):
            raise TemplateError(f"parameter {key}={value!r}: letters, digits and . : @ % + - _ are accepted")
    for key in grid:
        if not _KEY.fullmatch(key):
            raise TemplateError(f"grid parameter {key!r} is not a name such as learning-rate")
    if not command:
        raise TemplateError(f"template {name!r} needs a command to run")
    points = [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]
    try:
        made = {"grid": points, "command": list(command), "checkpoint_signal": _CHECKPOINT_SIGNAL}
        made |= {"rendezvous_port": _RENDEZVOUS_PORT, "sxrun": SXRUN}
        rendered = environment.from_string(text).render({**values, **made})
    except (jinja2.TemplateError, ValueError) as error:
        raise TemplateError(f"template {name!r}: {error}") from error
    return rendered.strip("\n") + "\n"


@dataclass(frozen=True, slots=True)
class _Declared:
    """What a template's .toml file says: its parameters with their defaults, those it needs, whether it sweeps.

    `signals` are those that reach the command's processes; empty for one that passes on all.
    """

    defaults: dict[str, str]
    required: tuple[str, ...]
    sweeps: bool
    signals: tuple[str, ...]


def _load(name: str) -> tuple[str, _Declared]:
    """The template's text, and its declaration."""
    path = Path(name)
    if path.suffix == ".j2":
        base, folder = path.name.removesuffix(".j2").removesuffix(".sh"), path.parent
        source, declaration = folder / path.name, folder / f"{base}.toml"
    elif name in names():
        here = resources.files("sbatch_templates")
        source, declaration = Path(str(here / f"{name}.sh.j2")), Path(str(here / f"{name}.toml"))
    else:
        raise TemplateError(f"unknown template {name!r} (known: {', '.join(names())}, or a path to a .j2 file)")
    try:
        found = tomllib.loads(declaration.read_text(encoding="utf-8"))
        defaults = {str(key): str(value) for key, value in found.get("parameters", {}).items()}
        required, signals = (tuple(found.get(key, ())) for key in ("required", "signals"))
        declared = _Declared(defaults, required, bool(found.get("sweeps", False)), signals)
        return source.read_text(encoding="utf-8"), declared
    except OSError as error:
        raise TemplateError(f"{error.filename}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TemplateError(f"template {name!r}: {error}") from error
