"""A member of a share group that does as it is told and no more, over one connection.

with ShareMember(bootstrap, group, topic_id) as member:
    member.fetch()                      -> what it acquired
    member.acknowledge((0, 9, ACCEPT))  -> the partition's error code
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.wire import Wire, request_frame

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FINAL_EPOCH = -1
COORDINATOR_NOT_AVAILABLE = 15
_SHARE = 2  # what a coordinator is asked for

Acknowledgement: TypeAlias = tuple[int, int, int | Sequence[int]]  # first, last, type or types
Acquired: TypeAlias = list[tuple[int, int, int]]  # first, last, delivery count


class ShareMember:
    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic_id: uuid.UUID,
        member_id: str | None = None,
        *,
        version: int = 2,
    ) -> None:
        self.wire = Wire(bootstrap)
        self.group = group
        self.topic_id = topic_id
        self.member_id = member_id or str(uuid.uuid4())
        self.version = version
        self.epoch = 0

    def __enter__(self) -> ShareMember:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.socket.close()

    def fetch_answer(
        self,
        *acks: Acknowledgement,
        epoch: int | None = None,
        partitions: Sequence[int] = (0,),
        **fields: Any,
    ) -> Any:
        """The whole answer to one ShareFetch; the acknowledgements are of partition 0."""
        return self.send_fetch(*acks, epoch=epoch, partitions=partitions, **fields)()

    def send_fetch(
        self,
        *acks: Acknowledgement,
        epoch: int | None = None,
        partitions: Sequence[int] = (0,),
        **fields: Any,
    ) -> Callable[[], Any]:
        """Send one ShareFetch; the function returned waits for its answer."""
        values = {
            "max_wait": 500,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self._next_epoch(epoch),
            "topics": (self._topic(partitions, acks),),
        } | fields
        self.wire.send(request_frame("share_fetch", self.version, **values))
        return lambda: self.wire.receive("share_fetch", self.version)

    def fetch(self, *acks: Acknowledgement, **fields: Any) -> Acquired:
        """What one ShareFetch acquires; its acknowledgements must be well."""
        answer = self.fetch_answer(*acks, **fields)
        assert answer.error_code == 0, answer
        for partition in _partitions(answer):
            assert partition.error_code == 0, partition
            assert partition.acknowledge_error_code == 0, partition
        return acquired(answer)

    def acknowledge_answer(
        self, *acks: Acknowledgement, epoch: int | None = None, **fields: Any
    ) -> Any:
        return self.wire.call(
            "share_acknowledge",
            self.version,
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self._next_epoch(epoch),
            topics=(self._topic((0,), acks),),
            **fields,
        )

    def acknowledge(self, *acks: Acknowledgement, **fields: Any) -> int:
        """The error code of the partition."""
        answer = self.acknowledge_answer(*acks, **fields)
        assert answer.error_code == 0, answer
        (partition,) = _partitions(answer)
        return int(partition.error_code)

    def send_acknowledgements(self, *acks: Acknowledgement) -> Callable[[], int]:
        """Acknowledge without waiting; what is returned waits for the partition's error code."""
        fields = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self._next_epoch(None),
            "topics": (self._topic((0,), acks),),
        }
        self.wire.send(request_frame("share_acknowledge", self.version, **fields))

        def receive() -> int:
            (partition,) = _partitions(self.wire.receive("share_acknowledge", self.version))
            return int(partition.error_code)

        return receive

    def close(self) -> None:
        """End the session: what it holds is released."""
        assert self.fetch_answer(epoch=FINAL_EPOCH).error_code == 0

    def _next_epoch(self, epoch: int | None) -> int:
        if epoch is None:
            epoch = self.epoch
            self.epoch += 1
        return epoch

    def _topic(self, partitions: Sequence[int], acks: Sequence[Acknowledgement]) -> dict[str, Any]:
        batches = [
            {
                "first_offset": first,
                "last_offset": last,
                "acknowledge_types": (kinds,) if isinstance(kinds, int) else tuple(kinds),
            }
            for first, last, kinds in acks
        ]
        described = [
            {"partition_index": index, "acknowledgement_batches": batches if not number else ()}
            for number, index in enumerate(partitions)
        ]
        return {"topic_id": self.topic_id, "partitions": described}


def acquired(answer: Any) -> Acquired:
    return [
        (it.first_offset, it.last_offset, it.delivery_count)
        for partition in _partitions(answer)
        for it in partition.acquired_records
    ]


def acquired_by_partition(answer: Any) -> dict[int, Acquired]:
    """What was acquired of each partition of the only topic, where anything was."""
    return {
        partition.partition_index: [
            (it.first_offset, it.last_offset, it.delivery_count)
            for it in partition.acquired_records
        ]
        for partition in _partitions(answer)
        if partition.acquired_records
    }


def _partitions(answer: Any) -> list[Any]:
    return [partition for topic in answer.responses for partition in topic.partitions]


def initialize(
    bootstrap: str, group: str, topic_id: uuid.UUID, *, offset: int = 0, partition: int = 0
) -> None:
    """Have the group begin at an offset, as its coordinator does when it first assigns it."""
    key = f"{group}:{_as_kafka_prints(topic_id)}:{partition}"
    deadline = time.monotonic() + PATIENCE_SECONDS
    with Wire(bootstrap) as wire:
        while True:
            wire.call("find_coordinator", 6, key_type=_SHARE, coordinator_keys=(key,))
            answer = wire.call(
                "initialize_share_group_state",
                0,
                group_id=group,
                topics=(
                    {
                        "topic_id": topic_id,
                        "partitions": (
                            {"partition": partition, "state_epoch": 0, "start_offset": offset},
                        ),
                    },
                ),
            )
            error = answer.results[0].partitions[0].error_code
            if error == 0:
                return
            assert time.monotonic() < deadline, f"not initialized: {error}"
            time.sleep(0.05)


def _as_kafka_prints(topic_id: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
