"""The progress of a pipeline as offsets of a consumer group.

Spark's checkpoint decides where a query continues; the group is for people and tools: `millstream
group describe` shows the lag of a pipeline like that of any consumer. Offsets are committed after
every completed batch, from the file that Spark wrote before the batch (`offsets/N`):

    v1
    {"batchWatermarkMs": ...}        the batch's own settings
    {"orders": {"0": 17}}            one line for each source, "-" for one without offsets yet;
                                     sources of other kinds have their own format

The group has no members: offsets are committed as those of a "simple" consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from millstream.client.cluster import Cluster, CoordinatorKind, check
from millstream.client.security import Security
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.pipelines.offsets import Offsets
from millstream.pipelines.query_files import ends_in

logger = logging.getLogger(__name__)

NO_GENERATION = -1
BY_NAME_VERSION = 9  # later ones name topics by id
TIMEOUT_SECONDS = 10.0


class GroupProgress:
    """Commits the offsets of one group; connects with the first commit."""

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
        """Raises `ApiError`, or `OSError` if the coordinator cannot be reached in time."""
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
                f"group {self._group_id} has active members, so a pipeline cannot commit offsets "
                'to it: choose another one, @pipeline(group="...")',
            )
        message = f"committing offsets of {self._group_id}: {code.description}"
        check(code, message, "offset_commit")

    def report(self, offsets: Offsets) -> None:
        """`commit`, but a failure is only logged: the next batch commits later offsets."""
        try:
            self.commit(offsets)
        except (MillstreamError, OSError) as error:
            logger.warning("offsets of group %s are not committed: %s", self._group_id, error)

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
    """The offsets at which a batch ends, from the content of its file in `offsets/`."""
    if not text.startswith("v"):
        raise MillstreamError("a file in the checkpoint's offsets/ is not one of Spark's")
    return ends_in(text)
