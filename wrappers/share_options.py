"""What a job asks of a GPU that it shares: options of `sxrun`, and their twins in the environment.

The environment is what the interposer reads inside the command's processes (`kernel_intercept/gate`). An option counts
before its twin.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from explsched.job_options.command_line import add, exported, read
from explsched.job_options.table import LIMIT, MEMORY, MPS, REQUEST, SHARE, SHARING
from explsched.job_options.values import permille

_SWITCH = "EXPLSCHED_INTERCEPT"
_BEST_EFFORT = SHARE.kind.choices[1]


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """What is asked for, by the option's name. Without any of it there is no kernel-level sharing."""

    values: Mapping[str, str]
    mps: bool

    @property
    def priority(self) -> str | None:
        """The class, None where no kernel-level sharing is."""
        return self.values.get(SHARE.name)

    @property
    def is_best_effort(self) -> bool:
        """Whether the command takes what others leave."""
        return self.priority == _BEST_EFFORT

    @property
    def memory(self) -> str | None:
        """Most memory on a GPU, in whole mebibytes such as 20480M; None without a limit."""
        return self.values.get(MEMORY.name)

    @property
    def is_any(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.values) or self.mps

    @property
    def has_quota(self) -> bool:
        """Whether it asks for a fraction of the GPU's time."""
        return REQUEST.name in self.values or LIMIT.name in self.values

    def environment(self) -> dict[str, str]:
        """The variables for the command."""
        return exported(self.values, SHARING)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `sxrun` about a shared GPU."""
    group = parser.add_argument_group(
        "sharing a GPU", "Each option can be set in the environment, too; see docs/kernels.md."
    )
    for option in SHARING:
        add(group, option)


def chosen(options: argparse.Namespace, environment: Mapping[str, str]) -> tuple[ShareRequest, list[str]]:
    """What is asked for, and warnings about what is passed over, as the job must run all the same.

    The kill switch leaves MPS alone, which needs nothing of ours inside the command. Raises ValueError if the options
    contradict each other.
    """
    found = read(environment, SHARING)
    warnings = list(found.warnings)
    given = {option.name: value for option in SHARING if (value := getattr(options, option.yaml_key))}
    values = found.values | given
    mps = values.pop(MPS.name, "0") == "1"
    request, limit = values.get(REQUEST.name), values.get(LIMIT.name)
    if request and limit and permille(request) > permille(limit):
        if REQUEST.name in given and LIMIT.name in given:
            raise ValueError(f"{REQUEST.flag} {request} is more than {LIMIT.flag} {limit}")
        warnings.append(f"the request of {request} is lowered to the limit of {limit}")
        values[REQUEST.name] = limit
    if request or limit:
        values.setdefault(SHARE.name, _BEST_EFFORT)
    if environment.get(_SWITCH, "").lower() == "off":
        if MEMORY.name in values:
            warnings.append(f"memory is not limited: {_SWITCH} is off")
        values = {}
    return ShareRequest(values, mps), warnings
