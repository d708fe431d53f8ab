"""Options that commands share. Light: commands that do not look at Slurm must not pay for what looking takes."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import ClassVar

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
config_option = click.option(
    "-f", "--config", "config_path", type=click.Path(path_type=Path), help="Configuration file.", show_envvar=True
)


class _Moment(click.ParamType[float]):
    """A moment: `90m`, `2h` or `7d` ago, `2026-01-31` or `2026-01-31T12:00` local time; in seconds since 1970."""

    name = "time"
    _UNITS_S: ClassVar[Mapping[str, float]] = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As click asks for it."""
        text = str(value)
        ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
        if ago:
            return time.time() - float(ago[1]) * self._UNITS_S[ago[2]]
        if text == "0":
            return 0.0
        try:
            return datetime.fromisoformat(text).astimezone().timestamp()
        except ValueError:
            self.fail(f"{text!r}: accepted are 90m, 2h, 7d, 2026-01-31 and 2026-01-31T12:00", param, ctx)


MOMENT = _Moment()
