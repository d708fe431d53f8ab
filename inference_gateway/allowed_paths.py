"""Which paths of a replica clients reach.

Model servers have more than inference behind their port: vLLM alone sleeps, loads adapters and forgets its cache by
POST. So a service names the paths that are passed on, and everything else is refused at the gateway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

BELOW = "/*"
"""At the end of an entry: everything below, as far as it is written plainly."""

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
"""What clients of OpenAI's interface ask for, and what tells them whether a replica is well. The gateway itself answers
`GET /v1/models`."""

ACCEPTED = "absolute paths of letters, digits, `_`, `-`, `.`, `~`, `:` and `@`, with /* at the end for all below"
_ENTRY = re.compile(r"(/[A-Za-z0-9_~:@-][A-Za-z0-9_.~:@-]{0,99}){0,12}(/\*)?")


def path_faults(paths: Iterable[str]) -> Iterator[str]:
    """What is wrong with each entry that cannot be accepted, and with a list without any."""
    known = tuple(paths)
    if not known:
        yield "is empty, at least one path is needed"
    for path in known:
        if not path or not _ENTRY.fullmatch(path):
            yield f"found {path!r}, accepted: {ACCEPTED}"


def exact(paths: Iterable[str]) -> list[str]:
    """The entries that stand for themselves."""
    return sorted({path for path in paths if not path.endswith(BELOW)})


def prefixes(paths: Iterable[str]) -> list[str]:
    """What the paths below the other entries begin with: `/v1/files/` for `/v1/files/*`."""
    return sorted({path.removesuffix("*") for path in paths if path.endswith(BELOW)})
