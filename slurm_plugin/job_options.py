"""What a job tells the daemon, carried in its Slurm comment.

One word of the comment, `explsched:` followed by a URL-encoded query, e.g.
`sbatch --comment="explsched:sweep=digits&checkpoint=USR1&stop=1 anything else"`. The comment is the one field
that every Slurm version lets a user set, shows to everybody and keeps through a requeue.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping
from urllib.parse import parse_qsl

from msgspec import Struct

from explsched.errors import ExplschedError
from sched_policy.model import Direction, Elastic, Exploration, StageProfile

PREFIX = "explsched:"
_EXPLORATION_KEYS = ("sweep", "metric", "direction", "checkpoint", "stop")
_SHARING_KEYS = ("share", "request", "limit")
KEYS = ("class", *_EXPLORATION_KEYS, *_SHARING_KEYS, "elastic", "stages")
CLASSES = ("guaranteed", "opportunistic")
SHARES = ("high", "best-effort")
MOST_GPUS = 100_000
_SIZES = re.compile(r"([0-9]{1,6})-([0-9]{1,6})(?:/([0-9]{1,6}))?")
_STAGES = 3


class GpuSharing(Struct, frozen=True):
    """How the job's kernels share a GPU: its class, and permille of the GPU's time. None is what was not told."""

    share: str | None = None
    request_permille: int | None = None
    limit_permille: int | None = None


class JobOptions(Struct, frozen=True):
    """What one job told. `exploration` and `sharing` are None if it told nothing of them.

    `guaranteed` is its class (AntMan), true unless it said otherwise. `elastic` are the sizes at which it can run.
    `stages` is where its iterations spend their time (Muri).
    """

    exploration: Exploration | None = None
    guaranteed: bool = True
    sharing: GpuSharing | None = None
    elastic: Elastic | None = None
    stages: StageProfile | None = None


class JobOptionError(ExplschedError):
    """The job's comment has an `explsched:` word that cannot be understood."""


def parse(comment: str) -> JobOptions | None:
    """The job's options; None if its comment has no `explsched:` word. Raises `JobOptionError`."""
    words = [word for word in comment.split() if word.startswith(PREFIX)]
    if not words:
        return None
    if len(words) > 1:
        raise JobOptionError(f"the comment has {len(words)} words starting with {PREFIX!r}, one is accepted")
    query = words[0].removeprefix(PREFIX)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except (ValueError, UnicodeDecodeError) as error:
        raise JobOptionError(f"{words[0]!r} is not of the form {PREFIX}key=value&key=value") from error
    values = dict(pairs)
    if len(values) != len(pairs):
        raise JobOptionError(f"{words[0]!r} names a key twice")
    unknown = [key for key in values if key not in KEYS]
    if unknown:
        raise JobOptionError(f"unknown key {unknown[0]!r} in {words[0]!r} (known: {', '.join(KEYS)})")
    return JobOptions(
        exploration=_exploration(values) if not values or values.keys() & set(_EXPLORATION_KEYS) else None,
        guaranteed=_guaranteed(values.get("class", "guaranteed")),
        sharing=_sharing(values) if values.keys() & set(_SHARING_KEYS) else None,
        elastic=_elastic(values["elastic"]) if "elastic" in values else None,
        stages=_stages(values["stages"]) if "stages" in values else None,
    )


def _exploration(values: Mapping[str, str]) -> Exploration:
    return Exploration(
        sweep=values.get("sweep") or None,
        metric=values.get("metric") or "loss",
        direction=_direction(values.get("direction", "min")),
        checkpoint_signal=_signal(values.get("checkpoint")),
        may_stop=_switch(values.get("stop", "0")),
    )


def _sharing(values: Mapping[str, str]) -> GpuSharing:
    share = values.get("share")
    if share not in (None, *SHARES):
        raise JobOptionError(f"share={share!r}: accepted are {' and '.join(SHARES)}")
    return GpuSharing(share, _permille(values, "request"), _permille(values, "limit"))


def _permille(values: Mapping[str, str], key: str) -> int | None:
    text = values.get(key)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1000:
        raise JobOptionError(f"{key}={text!r}: accepted are 1 to 1000 permille of a GPU")
    return int(text)


def _elastic(text: str) -> Elastic:
    """`MIN-MAX` GPUs on one node, or `MIN-MAX/N`: N on each of several nodes."""
    match = _SIZES.fullmatch(text)
    least, most, per_node = (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)
    unit = per_node or 1
    if not 1 <= least < most <= MOST_GPUS or least % unit or most % unit or (match and match[3] and not per_node):
        raise JobOptionError(
            f"elastic={text!r}: accepted are MIN-MAX GPUs on one node, or MIN-MAX/N with N on each of several nodes; "
            f"1 <= MIN < MAX, both multiples of N"
        )
    return Elastic(least, most, per_node or None)


def _stages(text: str) -> StageProfile:
    """Milliseconds of one iteration that runs alone, and of its stages, as `sched_policy.model.StageProfile`."""
    wanted = f"stages={text!r}: accepted are four numbers of milliseconds ITERATION/IO/GPU/NET, as in 110/60/45/5"
    try:
        iteration_ms, *stages_ms = (float(part) for part in text.split("/"))
    except ValueError as error:
        raise JobOptionError(wanted) from error
    right = len(stages_ms) == _STAGES and all(0 <= ms < math.inf for ms in stages_ms) and sum(stages_ms) > 0
    if not right or not 0 < iteration_ms < math.inf:
        raise JobOptionError(wanted)
    io_ms, gpu_ms, net_ms = stages_ms
    return StageProfile(iteration_ms / 1000, io_ms / 1000, gpu_ms / 1000, net_ms / 1000)


def _guaranteed(text: str) -> bool:
    if text not in CLASSES:
        raise JobOptionError(f"class={text!r}: accepted are {' and '.join(CLASSES)}")
    return text == "guaranteed"


def _direction(text: str) -> Direction:
    try:
        return Direction(text)
    except ValueError as error:
        raise JobOptionError(f"direction={text!r}: accepted are min and max") from error


def _signal(text: str | None) -> str | None:
    """A signal name without SIG that a job can catch."""
    if not text:
        return None
    name = text.upper().removeprefix("SIG")
    if f"SIG{name}" not in signal.Signals.__members__ or name in ("KILL", "STOP"):
        raise JobOptionError(f"checkpoint={text!r}: not a signal that a job can catch, such as USR1")
    return name


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise JobOptionError(f"stop={text!r}: accepted are 0 and 1")
    return text == "1"
