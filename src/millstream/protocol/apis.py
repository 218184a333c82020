"""The registry of APIs: what the broker speaks, and who answers.

A handler module registers its function, so that ApiVersions cannot promise what nobody serves:

    @api(12, "heartbeat", versions=(0, 4))
    async def heartbeat(context: RequestContext, request: HeartbeatRequest) -> Fields: ...

`raw=True` handlers (Produce, Fetch, Metadata, ApiVersions) are handed the body undecoded and return
the encoded response body; they are the hot paths and the first answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

HandlerFunction = TypeVar("HandlerFunction", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Api:
    key: int
    name: str  # kio's name of the schema, e.g. "offset_commit"
    min_version: int
    max_version: int
    handler: Callable[..., Any]
    first_flexible: int  # the first version with request header 2; past max_version when none
    raw: bool = False  # takes the undecoded body, returns the encoded response
    exact: bool = False  # takes the request in its own version's class, not the newest one's
    advertised_min: int | None = None  # what ApiVersions says, where that differs from min_version


APIS: dict[int, Api] = {}


def api(
    key: int,
    name: str,
    *,
    versions: tuple[int, int],
    first_flexible: int,
    raw: bool = False,
    exact: bool = False,
    advertised_min: int | None = None,
) -> Callable[[HandlerFunction], HandlerFunction]:
    """Register the decorated function as the handler of an API."""

    def register(handler: HandlerFunction) -> HandlerFunction:
        if key in APIS:
            raise ValueError(f"API {key} is registered twice: {APIS[key].name} and {name}")
        low, high = versions
        APIS[key] = Api(key, name, low, high, handler, first_flexible, raw, exact, advertised_min)
        return handler

    return register
