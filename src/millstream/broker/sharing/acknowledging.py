"""The acknowledgements of one request, which ShareAcknowledge and ShareFetch both carry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from millstream.broker.completion import Completion
from millstream.coordination.cluster_features import SHARE_VERSION
from millstream.coordination.sharing.window import REJECT, RENEW
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.share_fetch import (
    AcknowledgedTopics,
    Acknowledgement,
)

if TYPE_CHECKING:
    from millstream.broker.sharing.partitions import SharePartitions
    from millstream.coordination.cluster import ClusterImage

PartitionId: TypeAlias = tuple[UUID, int]
RequireRight: TypeAlias = Callable[[UUID], None]
"""Raises `ApiError` if the client may not read the topic."""

MEMBER_ID_LENGTH_MAX = 36


class Acknowledging(Completion):
    """Acknowledgements that are being persisted; done when all are, or were refused."""

    def __init__(self) -> None:
        self.results: dict[PartitionId, ApiError | None] = {}  # None: all is well
        self._pending = 1  # `start` counts as one, until it has handed out all of them

    def start(
        self,
        leaders: SharePartitions,
        group_id: str,
        member_id: str,
        topics: AcknowledgedTopics,
        *,
        may_renew: bool,
        require_right: RequireRight,
    ) -> None:
        """Hand everything to the leaders. What is wrong with one partition concerns no other, and
        of those without acknowledgements nothing is said."""
        for topic_id, partitions in topics:
            for index, acknowledgements in partitions:
                if not acknowledgements:
                    continue
                try:
                    require_right(topic_id)
                    leaders.table.find(topic_id, index)
                    ranges = checked_ranges(acknowledgements, may_renew=may_renew)
                    leader = leaders.get(group_id, topic_id, index)
                    if leader is None:
                        raise ApiError(
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            f"no records of partition {index} were delivered to group {group_id}",
                        )
                except ApiError as error:
                    self.results[topic_id, index] = error
                else:
                    self._pending += 1
                    leaders.acknowledgement_requests[topic_id] += 1
                    for first, last, kind in ranges:
                        leaders.acknowledged[kind] += last - first + 1
                    leader.acknowledge(member_id, ranges, self._taker((topic_id, index)))
        self._one_is_done()

    def _taker(self, partition: PartitionId) -> Callable[[ApiError | None], None]:
        def take(error: ApiError | None) -> None:
            self.results[partition] = error
            self._one_is_done()

        return take

    def _one_is_done(self) -> None:
        self._pending -= 1
        if not self._pending:
            self.finish()


def require_share_groups(image: ClusterImage) -> None:
    if not image.features.get(SHARE_VERSION, 0):
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            "share groups are disabled: upgrade the feature share.version to 1",
        )


def checked_ids(group_id: str | None, member_id: str | None) -> tuple[str, str]:
    """Both ids, if they are valid."""
    if group_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if not member_id or len(member_id) > MEMBER_ID_LENGTH_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return group_id, member_id


def checked_ranges(
    acknowledgements: Iterable[Acknowledgement], *, may_renew: bool
) -> list[tuple[int, int, int]]:
    """Acknowledged ranges as (first, last, type), with equal neighbours merged.

    Raises `ApiError` for acknowledgements that are out of order or invalid.
    """
    ranges: list[tuple[int, int, int]] = []
    last_before = -1
    highest_type = RENEW if may_renew else REJECT
    for first, last, types in acknowledgements:
        size = last - first + 1
        if size <= 0 or first < last_before:
            raise _invalid(f"offsets {first} to {last} are out of order")
        if not types or (len(types) > 1 and len(types) != size):
            raise _invalid(f"{len(types)} types for the {size} offsets from {first} on")
        if max(types) > highest_type:
            raise _invalid(f"acknowledge type {max(types)} is not known in this request")
        last_before = last
        if len(types) == 1:
            _add(ranges, first, last, types[0])
        else:
            _add_each(ranges, first, types)
    return ranges


def _add_each(ranges: list[tuple[int, int, int]], first: int, types: Sequence[int]) -> None:
    for kind, group in groupby(types):
        size = sum(1 for _ in group)
        _add(ranges, first, first + size - 1, kind)
        first += size


def _add(ranges: list[tuple[int, int, int]], first: int, last: int, kind: int) -> None:
    if ranges and ranges[-1][1] == first - 1 and ranges[-1][2] == kind:
        first = ranges.pop()[0]
    ranges.append((first, last, kind))


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
