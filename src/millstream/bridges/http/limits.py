"""Who may do what over HTTP, and which webhooks were written before. Pure."""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

INTERNAL_PREFIX = "__"
IDS_MAX = 10_000
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def is_allowed(topic: str, patterns: Iterable[str]) -> bool:
    """Whether a topic is among those of the file. Internal topics never are."""
    if topic.startswith(INTERNAL_PREFIX):
        return False
    return any(fnmatchcase(topic, pattern) for pattern in patterns)


def has_token(headers: Mapping[str, str], token: str | None) -> bool:
    """Whether a request has the bearer token, if one is needed."""
    if token is None:
        return True
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), token.encode())


def is_foreign(headers: Mapping[str, str], origins: Iterable[str]) -> bool:
    """Whether a page of another site sends the request: without this, any page that somebody opens
    could write to a bridge on their machine."""
    origin = headers.get("origin")
    if origin is not None:
        return origin not in origins
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def is_local(headers: Mapping[str, str]) -> bool:
    """Whether a request names this machine. A page whose name now resolves to 127.0.0.1 is of the
    same origin for a browser, but its requests have its name in Host."""
    host = headers.get("host", "").lower()
    name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return name in LOCAL_NAMES


class RecentIds:
    """The ids of the last webhooks that were written."""

    def __init__(self, number_max: int = IDS_MAX) -> None:
        self._number_max = number_max
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._ids

    def add(self, message_id: str) -> None:
        if not message_id:
            return
        self._ids[message_id] = None
        self._ids.move_to_end(message_id)
        while len(self._ids) > self._number_max:
            self._ids.popitem(last=False)
