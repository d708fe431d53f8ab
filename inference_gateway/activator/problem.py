"""Errors in the form of OpenAI's, as the gateway writes them everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web


def problem(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """The answer that tells a client what is wrong."""
    body = {"error": {"message": message, "type": "gateway_error", "code": status}}
    return web.json_response(body, status=status, headers=headers)
