"""What a value of the settings may be: alphabets and bounds. Each check raises `SettingsError`."""

from __future__ import annotations

import math
import re

from inference_gateway.errors import SettingsError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,199}")
PATH = re.compile(r"/[A-Za-z0-9_.~/-]{0,199}")
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}|[0-9a-fA-F:.]{2,45}")
DIGEST = re.compile(r"[0-9A-F]{64}")
DIRECTORY = re.compile(r"/[A-Za-z0-9_./~+-]{0,80}")
CERTIFICATE = re.compile(r"/[A-Za-z0-9_./~+-]{0,4000}")


def matches(what: str, found: str, pattern: re.Pattern[str], accepted: str, shown: str = "") -> None:
    """The whole text is of the alphabet. `shown` stands for it in the message where it is secret."""
    if not pattern.fullmatch(found):
        raise SettingsError(f"{what}: found {shown or repr(found)}, accepted: {accepted}")


def within(what: str, found: float, least: float, most: float) -> None:
    """A finite number from `least` to `most`."""
    if not (math.isfinite(found) and least <= found <= most):
        raise SettingsError(f"{what}: found {found}, accepted: {least:g} to {most:g}")


def one_of(what: str, found: str, accepted: tuple[str, ...]) -> None:
    """One of the words that are accepted."""
    if found not in accepted:
        raise SettingsError(f"{what}: found {found!r}, accepted: {', '.join(accepted)}")


def unique(what: str, found: list[str]) -> None:
    """No name is there twice."""
    seen = set[str]()
    for name in found:
        if name in seen:
            raise SettingsError(f"{what} {name!r} is there twice")
        seen.add(name)
