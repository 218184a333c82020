"""Regular-expression subscriptions (KIP-848): RE2, matched against whole topic names.

The server, not the client, resolves them, so every client gets the same meaning: that of RE2, whose
matching takes time linear in the name. A bad expression is refused when it is first subscribed to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2

from millstream.coordination.group_records import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from millstream.coordination.result import CoordinatorRecord
from millstream.errors import ApiError, ErrorCode

# RE2 gives up on an expression that would take more; it must not take the broker's memory.
_PROGRAM_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that an expression matched in one version of the metadata."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int

    def record(self, group_id: str, regex: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ConsumerGroupRegularExpressionKey(group_id, regex),
            ConsumerGroupRegularExpressionValue(
                tuple(sorted(self.topics)), self.version, self.timestamp_ms
            ),
        )


def regex_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    return CoordinatorRecord(ConsumerGroupRegularExpressionKey(group_id, regex), None)


def validate_regex(regex: str) -> None:
    """Raise INVALID_REGULAR_EXPRESSION unless RE2 takes the expression."""
    try:
        _compiled(regex)
    except re2.error as error:
        reason = error.args[0] if error.args else "it cannot be parsed"
        if isinstance(reason, bytes):
            reason = reason.decode(errors="replace")
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}.",
        ) from error


def matching_topics(regex: str, names: Iterable[str]) -> frozenset[str]:
    """The topics whose whole name the (valid) expression matches."""
    matches = _compiled(regex).fullmatch
    return frozenset(name for name in names if matches(name))


@lru_cache(maxsize=256)
def _compiled(regex: str) -> Any:
    options = re2.Options()
    options.max_mem = _PROGRAM_BYTES_MAX
    options.log_errors = False
    return re2.compile(regex, options=options)
