"""Which paths of a service are open to clients: how the services file names them, and how HAProxy compares them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

BELOW = "/*"
"""At the end of a path: all paths below it that have no escapes or dot segments."""

USUAL_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/moderations",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/generations",
    "/tokenize",
    "/detokenize",
    "/health",
)
"""The paths that clients of OpenAI's interface use, and the health path. The gateway itself answers `GET /v1/models`.
Other paths are refused unless a service names them, because model servers offer more than inference on their port: with
vLLM a POST can put the server to sleep, load adapters or clear the cache."""

ACCEPTED = "absolute paths of letters, digits, `_`, `-`, `.`, `~`, `:` and `@`, with /* at the end for all below"
_ENTRY = re.compile(r"(/[A-Za-z0-9_~:@-][A-Za-z0-9_.~:@-]{0,99}){0,12}(/\*)?")


def path_faults(paths: Iterable[str]) -> Iterator[str]:
    """A message for each path that is not accepted, and for an empty list."""
    known = tuple(paths)
    if not known:
        yield "is empty, at least one path is needed"
    for path in known:
        if not path or not _ENTRY.fullmatch(path):
            yield f"found {path!r}, accepted: {ACCEPTED}"


def exact(paths: Iterable[str]) -> list[str]:
    """The entries that name a single path."""
    return sorted({path for path in paths if not path.endswith(BELOW)})


def prefixes(paths: Iterable[str]) -> list[str]:
    """The prefixes of the other entries: `/v1/files/` for `/v1/files/*`."""
    return sorted({path.removesuffix("*") for path in paths if path.endswith(BELOW)})


def opens(paths: Iterable[str], path: str) -> bool:
    """Whether these entries open a path that is none of a client's: it has no escapes or dot segments."""
    known = tuple(paths)
    return path in exact(known) or path.startswith(tuple(prefixes(known)))
