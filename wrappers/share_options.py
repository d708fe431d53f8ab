"""What a job asks of a GPU that it shares: options of `sxrun`, and their twins in the environment.

The environment is what the interposer reads inside the command's processes (`kernel_intercept/gate`), in thousandths of
a GPU: EXPLSCHED_CLASS, EXPLSCHED_REQUEST and EXPLSCHED_LIMIT. An option counts before its twin.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

CLASSES = ("high", "best-effort")
_CLASS, _REQUEST, _LIMIT, _MPS = "EXPLSCHED_CLASS", "EXPLSCHED_REQUEST", "EXPLSCHED_LIMIT", "EXPLSCHED_MPS"
_SWITCH = "EXPLSCHED_INTERCEPT"
_WHOLE_GPU = 1000


@dataclass(frozen=True, slots=True)
class Share:
    """What is asked for. `priority` is None where no kernel-level sharing is; request and limit are in permille."""

    priority: str | None
    request_permille: int | None
    limit_permille: int | None
    mps: bool

    def environment(self) -> dict[str, str]:
        """The variables for the command."""
        values = {_CLASS: self.priority, _REQUEST: self.request_permille, _LIMIT: self.limit_permille}
        return {name: str(value) for name, value in values.items() if value is not None}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `sxrun` about a shared GPU."""
    group = parser.add_argument_group(
        "sharing a GPU", "Each option has a twin in the environment; docs/kernels.md tells more."
    )
    group.add_argument(
        "--share",
        choices=CLASSES,
        help=f"let the kernel manager share the GPU; a high-priority command is not held up by others ({_CLASS})",
    )
    group.add_argument(
        "--request",
        type=_fraction,
        metavar="SHARE",
        help=f"share of the GPU's time that is kept for it when others want it, 0.001 to 1 ({_REQUEST}, permille)",
    )
    group.add_argument(
        "--limit",
        type=_fraction,
        metavar="SHARE",
        help=f"largest share of the GPU's time, 0.001 to 1 ({_LIMIT}, permille)",
    )
    group.add_argument(
        "--mps",
        action="store_true",
        help=f"start CUDA MPS for the job: without it kernels of several processes take turns ({_MPS}=1)",
    )


def chosen(options: argparse.Namespace, environment: Mapping[str, str]) -> tuple[Share, list[str]]:
    """What is asked for, and warnings about variables that cannot be used (they are passed over: the job must run).

    Raises ValueError if the options contradict each other.
    """
    warnings: list[str] = []
    priority = options.share or _class_of(environment, warnings)
    request = options.request or _permille_of(environment, _REQUEST, warnings)
    limit = options.limit or _permille_of(environment, _LIMIT, warnings)
    if request and limit and request > limit:
        if options.request and options.limit:
            raise ValueError(f"--request {request / _WHOLE_GPU} is more than --limit {limit / _WHOLE_GPU}")
        warnings.append(f"the request of {request} permille is lowered to the limit of {limit}")
        request = limit
    if priority is None and (request or limit):
        priority = "best-effort"
    if environment.get(_SWITCH, "").lower() == "off":
        priority = request = limit = None
    mps = options.mps or environment.get(_MPS, "") not in ("", "0")
    return Share(priority, request, limit, mps), warnings


def _fraction(text: str) -> int:
    """Permille of a fraction of a GPU. A type of argparse."""
    try:
        permille = round(_WHOLE_GPU * float(text))
    except (ValueError, OverflowError):
        permille = 0
    if not 1 <= permille <= _WHOLE_GPU:
        raise argparse.ArgumentTypeError(f"found {text!r}, accepted are fractions of a GPU from 0.001 to 1")
    return permille


def _class_of(environment: Mapping[str, str], warnings: list[str]) -> str | None:
    value = environment.get(_CLASS)
    if value and value not in CLASSES:
        warnings.append(f"{_CLASS}: found {value!r}, accepted are {' and '.join(CLASSES)}")
        return None
    return value or None


def _permille_of(environment: Mapping[str, str], name: str, warnings: list[str]) -> int | None:
    value = environment.get(name)
    if not value:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 4 and 1 <= int(value) <= _WHOLE_GPU):
        warnings.append(f"{name}: found {value!r}, accepted are thousandths of a GPU from 1 to {_WHOLE_GPU}")
        return None
    return int(value)
