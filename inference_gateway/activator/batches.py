"""OpenAI's `/v1/files` and `/v1/batches`: uploads, downloads and status. `batches.worker` processes the batches.

All state is in files that the gateways share, so any of them can answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from msgspec import Meta

from inference_gateway.activator.relay import is_compressed, problem
from inference_gateway.batches.store import Batch, FileRecord, NotFoundError, NotNowError, Owned
from inference_gateway.dataplane.settings import BatchSettings

_PART_BYTES = 1 << 20
_LONGEST_FIELD = 1 << 16
_LIST_LIMIT = 100
_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


_DRAFTING = asyncio.Lock()
"""Else uploads that begin together would all find room."""

_Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
"""With OpenAI's limits: each list of batches sends all of it."""


class _Asked(msgspec.Struct):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: _Metadata | None = None


async def answer(request: web.Request, settings: BatchSettings, owner: str) -> web.StreamResponse:
    """The answer to a request about the files or batches of the key `owner`."""
    if is_compressed(request):
        return problem(415, "compressed bodies are not accepted here")
    owned = Owned.of(settings, owner)
    kind, name, what = ([*request.path.split("/")[2:], "", ""])[:3]
    try:
        if kind == "files":
            return await _files(request, owned, name, what)
        return await _batches(request, owned, name, what)
    except NotFoundError as error:
        return problem(404, str(error))
    except NotNowError as error:
        return problem(400, str(error))
    except OSError as error:
        return problem(507, f"the gateway cannot keep or read it: {error.strerror}")


async def _files(request: web.Request, owned: Owned, name: str, what: str) -> web.StreamResponse:
    match request.method, bool(name), what:
        case "POST", False, "":
            return await _upload(request, owned)
        case "GET" | "HEAD", False, "":
            files = await asyncio.to_thread(owned.files)
            purpose = request.query.get("purpose")
            return _page(request, [file for file in files if purpose in (None, file.purpose)])
        case "GET" | "HEAD", True, "":
            return _json(msgspec.to_builtins(await asyncio.to_thread(owned.file, name)))
        case "GET" | "HEAD", True, "content":
            await asyncio.to_thread(owned.file, name)
            return web.FileResponse(owned.path(name, "data"), headers={"content-type": "application/octet-stream"})
        case "DELETE", True, "":
            await asyncio.to_thread(owned.delete, name)
            return _json({"id": name, "object": "file", "deleted": True})
        case _:
            return problem(404, "no such path")


async def _batches(request: web.Request, owned: Owned, name: str, what: str) -> web.StreamResponse:
    match request.method, bool(name), what:
        case "POST", False, "":
            return await _begin(request, owned)
        case "GET" | "HEAD", False, "":
            return _page(request, await asyncio.to_thread(owned.batches))
        case "GET" | "HEAD", True, "":
            return _json((await asyncio.to_thread(owned.batch, name)).shown())
        case "POST", True, "cancel":
            return _json((await asyncio.to_thread(owned.cancel, name)).shown())
        case _:
            return problem(404, "no such path")


async def _begin(request: web.Request, owned: Owned) -> web.Response:
    try:
        asked = msgspec.json.decode(await request.read(), type=_Asked)
    except web.HTTPRequestEntityTooLarge:
        return problem(413, "a request for a batch is at most 1 MiB")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return problem(400, f"not a request for a batch: {error}")
    if asked.endpoint not in _ENDPOINTS:
        return problem(400, f"endpoint: found {asked.endpoint[:80]!r}, accepted: {', '.join(_ENDPOINTS)}")
    about = (asked.input_file_id, asked.endpoint, asked.completion_window, asked.metadata)
    return _json((await asyncio.to_thread(owned.make_batch, *about)).shown())


async def _upload(request: web.Request, owned: Owned) -> web.Response:
    """Receive a form with `purpose` and `file`, in any order."""
    if request.content_type != "multipart/form-data":
        return problem(400, "a form (multipart/form-data) with `file` and `purpose` is needed")
    async with _DRAFTING:
        draft = await asyncio.to_thread(owned.draft)
        draft.touch(mode=0o600)  # from now on it counts
    purpose, filename = "", None
    try:
        async for part in await request.multipart():
            if not isinstance(part, aiohttp.BodyPartReader):
                return problem(400, "a form within a form")
            if part.name == "file":
                filename = (part.filename or "file")[:200].encode(errors="replace").decode()
                if not await _receive(part, draft, owned.settings.file_bytes):
                    return problem(413, f"the file is larger than {owned.settings.file_bytes >> 20} MiB")
            elif part.name == "purpose":
                purpose = (await part.read_chunk(_LONGEST_FIELD)).decode(errors="replace")
            else:
                await part.release()
        if purpose != "batch":
            return problem(400, f"purpose: found {purpose[:40]!r}, accepted: batch")
        if filename is None:
            return problem(400, "the form has no `file`")
        return _json(msgspec.to_builtins(await asyncio.to_thread(owned.add, draft, filename, purpose)))
    except HttpProcessingError:
        return problem(400, "the form cannot be read: the headers of a part are malformed")
    except ValueError as error:
        return problem(400, f"the form cannot be read: {error}")
    finally:
        draft.unlink(missing_ok=True)


async def _receive(part: aiohttp.BodyPartReader, draft: Path, limit_bytes: int) -> bool:
    """Write the uploaded file to `draft`; False if it is larger than `limit_bytes`."""
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    received = 0
    with os.fdopen(handle, "wb") as file:
        while content := await part.read_chunk(_PART_BYTES):
            received += len(content)
            if received > limit_bytes:
                return False
            await asyncio.to_thread(file.write, content)
        await asyncio.to_thread(_sync, file)
    return True


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _page(request: web.Request, found: Sequence[FileRecord] | Sequence[Batch]) -> web.Response:
    """One page of a list in OpenAI's form: at most `limit` entries, following the entry `after`."""
    limit = request.query.get("limit", str(_LIST_LIMIT))
    most = min(int(limit), 10_000) if limit.isdecimal() and len(limit) < 10 else _LIST_LIMIT
    after = request.query.get("after", "")
    rest = [one for one in found if not after or one.id < after]
    page = [one.shown() if isinstance(one, Batch) else msgspec.to_builtins(one) for one in rest[:most]]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return _json({"object": "list", "data": page, "has_more": len(rest) > most, **ends})


def _json(body: Mapping[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
