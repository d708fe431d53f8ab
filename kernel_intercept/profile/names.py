"""Names of kernels: from mangled to readable, and a spelling in which two demanglers agree."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection

_PREFIX = "_Z"
_TIMEOUT_S = 60.0
_ANONYMOUS = ("(anonymous namespace)", "<unnamed>", "_GLOBAL__N__")
_INTEGER = r"(?:(?:un)?signed )?(?:bool|char|short|int|long long|long|__int128)|unsigned|signed"
_CAST = re.compile(rf"\((?:{_INTEGER})\)(?=-?\d|true\b|false\b)")
_SUFFIX = re.compile(r"(?<=\d)(?:ull|ul|u|ll|l)\b", re.IGNORECASE)
_LITERALS = {"true": "1", "false": "0"}


def demangled(names: Collection[str]) -> dict[str, str]:
    """Each name with its readable form. What is not mangled, or cannot be read, stays as it is.

    c++filt reads thousands of names in a few milliseconds; where it is missing libstdc++ does it, name by name.
    """
    mangled = [name for name in names if name.startswith(_PREFIX) and name.isprintable() and " " not in name]
    readable = {name: name for name in names}
    tool = shutil.which("c++filt")
    if not mangled:
        return readable
    if tool is None:
        return readable | {name: _by_library(name) for name in mangled}
    text = "".join(f"{name}\n" for name in mangled)
    done = subprocess.run([tool], input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    return readable | dict(zip(mangled, done.stdout.splitlines(), strict=True))


def outline(mangled: str) -> str:
    """The qualified function name without template arguments, read off the mangling itself.

    For names that no demangler takes: the manager cuts long ones. What cannot be read stays as it is. (Itanium C++ ABI,
    5.1: `_ZN` <length><identifier>... `I` opens template arguments, `E` ends the name.)
    """
    nested = re.match(r"_ZN[KVr]*", mangled)
    position = nested.end() if nested else len(_PREFIX)
    parts: list[str] = []
    while mangled.startswith(_PREFIX) and (length := re.match(r"\d{1,4}", mangled[position:])):
        start = position + length.end()
        part = mangled[start : start + int(length.group())]
        parts.append("(anonymous namespace)" if part.startswith("_GLOBAL__N_") else part)
        position = start + int(length.group())
        if not nested:
            break
    if not parts:
        return mangled
    return "::".join(parts) + ("<...>" if mangled[position : position + 1] == "I" else "")


def comparable(readable: str) -> str:
    """The qualified name with its template arguments, spelled alike for GNU's and NVIDIA's demangler.

    Without return type and parameters: NVIDIA's writes the parameters of a template as T1, T2 where GNU's writes the
    types. Literals lose casts and suffixes: `(int)4`, `4` and `4u` are one, as are `(bool)1` and `true`.
    """
    text = readable
    for spelling in _ANONYMOUS:
        text = text.replace(spelling, "{anonymous}")
    text = _SUFFIX.sub("", _CAST.sub("", _without_parameters(text)))
    text = re.sub(r"\b(?:true|false)\b", lambda match: _LITERALS[match.group()], text)
    return re.sub(r"\s+", "", text)


def base_name(name: str) -> str:
    """The bare function name of what `comparable` gives: what `ncu --print-kernel-base function` prints."""
    depth, start, end = 0, 0, len(name)
    for index, character in enumerate(name):
        if character == "<":
            end = index if depth == 0 else end
            depth += 1
        elif character == ">":
            depth -= 1
        elif character == ":" and depth == 0:
            start, end = index + 1, len(name)
    return name[start:end]


def _without_parameters(text: str) -> str:
    """Cut the parameter list at the end and the return type at the start, both outside of any brackets."""
    depth, start, end = 0, 0, len(text)
    for index, character in enumerate(text):
        if character == "(" and depth == 0:
            end = index
            break
        if character in "<({[":
            depth += 1
        elif character in ">)}]":
            depth -= 1
        elif character == " " and depth == 0:
            start = index + 1
    return text[start:end]


def _by_library(name: str) -> str:
    import cxxfilt  # looks for libstdc++ when imported, which takes longer than most commands

    try:
        return str(cxxfilt.demangle(name))
    except cxxfilt.InvalidName:
        return name
