"""How far a pipeline has come, as an ordinary consumer group's offsets.

Spark's checkpoint decides where a query goes on; the group is for people and tools: `millstream
group describe` shows a pipeline's lag, like any consumer's. It is committed after every completed
batch, from what Spark wrote into the checkpoint before it began that batch (`offsets/N`):

    v1
    {"batchWatermarkMs": ...}        the batch's own settings
    {"orders": {"0": 17}}            one line for each source, "-" for one that had nothing yet;
                                     sources of other kinds write what they like

The group has no members: offsets are committed as those of a "simple" consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from millstream.client.cluster import Cluster, CoordinatorKind
from millstream.client.security import Security
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.pipelines.offsets import Offsets
from millstream.pipelines.query_files import ends_in

logger = logging.getLogger(__name__)

NO_GENERATION = -1
BY_NAME_VERSION = 9  # later ones name topics by id
TIMEOUT_SECONDS = 10.0


class GroupProgress:
    """Commits offsets of one group; connects when it first does."""

    def __init__(
        self,
        bootstrap_servers: str,
        group_id: str,
        *,
        security: Security | Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._group_id = group_id
        self._cluster = Cluster(
            bootstrap_servers,
            client_id=f"millstream-{group_id}",
            security=security,
            timeout_seconds=timeout_seconds,
        )

    def close(self) -> None:
        self._cluster.close()

    def commit(self, offsets: Offsets) -> None:
        """Raises `ApiError`, or `OSError` when the coordinator cannot be reached in time."""
        if not offsets:
            return
        answer = self._cluster.ask_coordinator(
            CoordinatorKind.GROUP,
            self._group_id,
            "offset_commit",
            self._request(offsets),
            version=BY_NAME_VERSION,
            error_of=_first_error,
        )
        code = _first_error(answer)
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            raise ApiError(
                code,
                f"the group {self._group_id} has living members, so a pipeline cannot show its "
                'progress there: give it another one, @pipeline(group="...")',
            )
        if code is not ErrorCode.NONE:
            raise ApiError(code, f"committing offsets of {self._group_id}: {code.description}")

    def report(self, offsets: Offsets) -> None:
        """`commit`, where failing must not stop a pipeline: the next batch makes up for it."""
        try:
            self.commit(offsets)
        except (MillstreamError, OSError) as error:
            logger.warning("the progress of %s is not shown: %s", self._group_id, error)

    def _request(self, offsets: Offsets) -> Mapping[str, Any]:
        topics: dict[str, list[Mapping[str, Any]]] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            topics.setdefault(topic, []).append(
                {
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_leader_epoch": -1,
                    "committed_metadata": None,
                }
            )
        return {
            "group_id": self._group_id,
            "generation_id_or_member_epoch": NO_GENERATION,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": name, "partitions": it} for name, it in topics.items()],
        }


def _first_error(answer: Any) -> ErrorCode:
    codes = [it.error_code for topic in answer.topics for it in topic.partitions]
    return next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)


def parse_offset_log(text: str) -> Offsets:
    """Where a batch ends, from its file in `offsets/`, which must be there."""
    if not text.startswith("v"):
        raise MillstreamError("a file in the checkpoint's offsets/ is not one of Spark's")
    return ends_in(text)
