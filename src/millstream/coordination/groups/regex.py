"""Regular-expression subscriptions (KIP-848): RE2, matched against whole topic names.

The server, not the client, resolves them, so every client gets the same meaning: that of RE2, whose
matching takes time linear in the name. A bad expression is refused when it is first subscribed to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
# A set of expressions is matched by an automaton alone, which needs room for some states of such a
# program: without it, it would quietly match nothing. It takes only what it uses.
_AUTOMATON_BYTES_MAX = 64 << 20


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
        re2.compile(regex, options=_options(_PROGRAM_BYTES_MAX))
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
    matches = _matcher(regex)
    return frozenset(name for name in names if matches(name))


@lru_cache(maxsize=256)
def _matcher(regex: str) -> Callable[[str], list[int]]:
    """A set of one takes 2 µs per name; creating a match object takes 10."""
    expressions = re2.Set.FullMatchSet(_options(_AUTOMATON_BYTES_MAX))
    expressions.Add(regex)
    expressions.Compile()
    match: Callable[[str], list[int]] = expressions.Match
    return match


def _options(bytes_max: int) -> Any:
    options = re2.Options()
    options.max_mem = bytes_max
    options.log_errors = False
    return options
