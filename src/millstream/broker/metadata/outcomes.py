"""What becomes of each item of a request whose commit fails as a whole.

All items are committed together, so if the metadata cannot be reached, its error is that of each
that was not refused before. Clients wait for an answer about every item that they named.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Mapping
from typing import TypeAlias, TypeVar

from millstream.errors import ApiError, ErrorCode, MillstreamError

logger = logging.getLogger(__name__)

K = TypeVar("K")
Outcomes: TypeAlias = dict[K, ApiError | None]


async def failures(items: Iterable[K], commit: Awaitable[object]) -> dict[K, ApiError]:
    """Empty if the commit succeeds; otherwise the reason, for each of the items."""
    try:
        await commit
    except ApiError as error:
        return dict.fromkeys(items, error)
    except MillstreamError:  # its message is not for clients: it may name files
        logger.exception("the metadata cannot be changed")
        unknown = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "The metadata cannot be changed.")
        return dict.fromkeys(items, unknown)
    return {}


def settled(outcomes: Mapping[K, ApiError | None], failed: Mapping[K, ApiError]) -> Outcomes[K]:
    """An item that was refused stays refused: to try it again later would not help."""
    return {**outcomes, **{key: outcomes.get(key) or error for key, error in failed.items()}}
