"""What must hold in every history of a cluster.

The simulation reports what each host does; each report is checked at once:

     1  what was below a high watermark, or was acknowledged with acks=all, is in every later leader
     2  batches with the same offset and epoch have the same bytes, and so has all before them
     3  a partition has one leader in an epoch
     4  versions and epochs rise; the leader is in sync, in-sync replicas are replicas, and there
        is one at least
     5  what is below a high watermark is durable on all in-sync replicas
     6  acks=all is answered when the record is below the high watermark, and durable on at least
        `min.insync.replicas` replicas
     7  a deposed leader does not acknowledge what its successor does not have
     8  no follower cuts off what is below its high watermark, and no in-sync one what is committed
     9  equal logs have equal producers, and no record is there twice
    10  only the controller of the current epoch commits decisions
    11  no log is deleted while it is a replica's, and none outlives its topic
    12  after healing everything is in sync and led by preferred replicas, and all is answered
        (`stories`)

and also that a log has, after a crash, what was durable before. A log is known here by the CRCs of
its prefixes: equal CRCs mean equal prefixes.
"""

from __future__ import annotations

import uuid
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from millstream.coordination.cluster import ClusterImage, PartitionImage
from millstream.records.batch import Buffer, iterate_headers
from millstream.testing.simulation.world import World

Key: TypeAlias = tuple[uuid.UUID, int]  # a partition: topic id and index
MIN_ISR = 2


class Piece(NamedTuple):
    """A batch in a log, and the CRC of the log up to and with it."""

    base_offset: int
    next_offset: int
    epoch: int
    crc: int


@dataclass
class Copy:
    """A host's log of a partition, as it should be."""

    start: int = 0  # above 0 after it was wiped
    pieces: list[Piece] = field(default_factory=list)
    crcs: dict[int, int] = field(default_factory=lambda: {0: 0})  # by the offset after a batch
    durable_end: int = 0

    @property
    def end(self) -> int:
        return self.pieces[-1].next_offset if self.pieces else self.start


@dataclass
class Committed:
    """What has been below a high watermark."""

    end: int = 0
    crc: int = 0
    crcs: dict[int, int] = field(default_factory=lambda: {0: 0})  # by the offset after a batch


class Invariants:
    """See the module. Counts what it has checked, so that a test can see that it has."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._copies: dict[tuple[int, Key], Copy] = {}
        self._committed: dict[Key, Committed] = {}
        self._batches: dict[tuple[Key, int, int], int] = {}  # offset, epoch -> CRC
        self._leaders: dict[tuple[Key, int], uuid.UUID] = {}
        self._leading: dict[Key, tuple[int, int]] = {}  # the newest: epoch, host
        self._image = ClusterImage()
        self.ack_count = 0
        self.election_count = 0
        self.truncation_count = 0
        self.wipe_count = 0
        self.isr_change_count = 0

    # Logs

    def appended(self, host: int, key: Key, records: Buffer) -> None:
        """A host has appended these batches (2)."""
        copy = self._copies.setdefault((host, key), Copy())
        self._add(host, key, copy, records)

    def recovered(self, host: int, key: Key, records: Buffer, *, start: int = 0) -> None:
        """A host has opened this log, whose first batch is at `start`, after a stop or crash."""
        before = self._copies.pop((host, key), Copy())
        if start > before.start:
            self._fail(f"host {host} lost the start of partition {key[1]}, up to {start}")
        copy = self._copies[host, key] = self._new_copy(key, start)
        self._add(host, key, copy, records)
        if copy.crcs.get(before.durable_end) != before.crcs.get(before.durable_end):
            self._fail(f"host {host} lost durable records of {key[1]} below {before.durable_end}")
        copy.durable_end = copy.end

    def flushed(self, host: int, key: Key, end: int) -> None:
        self._copies.setdefault((host, key), Copy()).durable_end = end

    def truncated(self, host: int, key: Key, end: int, *, is_below_high_watermark: bool) -> None:
        """A follower has cut its log (8)."""
        self.truncation_count += 1
        if is_below_high_watermark:
            self._fail(f"host {host} cut partition {key[1]} at {end}, below its high watermark")
        copy = self._copies.setdefault((host, key), Copy())
        while copy.pieces and copy.pieces[-1].next_offset > end:
            del copy.crcs[copy.pieces.pop().next_offset]
        copy.durable_end = copy.end
        self._check_in_sync(key, f"after host {host} was cut at {end}")

    def wiped(self, host: int, key: Key, start: int) -> None:
        """A follower has deleted all records, to begin where its leader begins."""
        self.wipe_count += 1
        committed = self._committed.get(key)
        if committed is None or start > committed.end:
            self._fail(f"host {host} begins partition {key[1]} at {start}, which nobody committed")
        self._copies[host, key] = self._new_copy(key, start)
        self._check_in_sync(key, f"after host {host} was wiped")

    def _new_copy(self, key: Key, start: int) -> Copy:
        if not start:
            return Copy()
        crc = self._committed[key].crcs[start]
        return Copy(start, crcs={start: crc}, durable_end=start)

    def deleted(self, host: int, key: Key, image: ClusterImage) -> None:
        """A host has deleted a log, acting on this image (11)."""
        partition = _find(image, key)
        if partition is not None and host in partition.replicas:
            self._fail(f"host {host} deleted its replica of partition {key[1]}")
        self._copies.pop((host, key), None)

    def logs_of(self, host: int) -> list[Key]:
        return [key for owner, key in self._copies if owner == host]

    def committed_offset(self, key: Key, share: float) -> int:
        """An offset between batches, at about this share of what is committed."""
        committed = self._committed.get(key)
        offsets = list(committed.crcs) if committed is not None else [0]
        return offsets[int(share * (len(offsets) - 1))]

    def crc_of(self, host: int, key: Key) -> int | None:
        """The CRC of a host's whole log."""
        copy = self._copies.get((host, key))
        return None if copy is None else copy.crcs[copy.end]

    def _add(self, host: int, key: Key, copy: Copy, records: Buffer) -> None:
        crc, end = copy.crcs[copy.end], copy.end
        for position, header in iterate_headers(records):
            crc = zlib.crc32(memoryview(records)[position : position + header.size_bytes], crc)
            if header.base_offset != end:
                self._fail(f"host {host} has a gap at {end} in partition {key[1]}")
            end = header.next_offset
            name = (key, header.base_offset, header.leader_epoch)
            if self._batches.setdefault(name, crc) != crc:
                self._fail(
                    f"host {host} has another batch at offset {header.base_offset} of epoch "
                    f"{header.leader_epoch} in partition {key[1]}, or another prefix"
                )
            copy.pieces.append(Piece(header.base_offset, end, header.leader_epoch, crc))
            copy.crcs[end] = crc

    # Leaders

    def leads(self, host: int, incarnation: uuid.UUID, key: Key, epoch: int) -> None:
        """A host begins to lead (1, 3)."""
        self.election_count += 1
        if self._leaders.setdefault((key, epoch), incarnation) != incarnation:
            self._fail(f"host {host} leads partition {key[1]} in epoch {epoch} of another leader")
        if epoch >= self._leading.get(key, (-1, -1))[0]:
            self._leading[key] = epoch, host
        partition = _find(self._image, key)
        if partition is not None and partition.leader_epoch == epoch:
            # Else it is late: it is deposed already, and its successors may have committed more.
            self._check_has_committed(host, key, f"which leads in epoch {epoch}")

    def high_watermark(self, host: int, key: Key, epoch: int, offset: int) -> None:
        """A leader shows records below this offset (1, 5, 7)."""
        committed = self._committed.setdefault(key, Committed())
        if offset <= committed.end:
            return
        copy = self._copies.get((host, key))
        crc = copy.crcs.get(offset) if copy is not None else None
        if crc is None:
            self._fail(f"host {host} has no batch that ends at its high watermark {offset}")
            return
        self._check_has_committed(host, key, f"which shows {offset} in epoch {epoch}")
        assert copy is not None
        new = [it for it in copy.pieces[-1000:] if committed.end < it.next_offset <= offset]
        committed.crcs.update((piece.next_offset, piece.crc) for piece in new)
        committed.end, committed.crc = offset, crc
        newest_epoch, newest = self._leading.get(key, (-1, -1))
        if newest_epoch > epoch:
            self._check_has_committed(newest, key, f"when deposed leader {host} shows {offset}")
        self._check_in_sync(key, f"at high watermark {offset} of host {host}")

    def follower_high_watermark(self, host: int, key: Key, offset: int) -> None:
        """A follower may show records below this offset (5)."""
        committed = self._committed.get(key)
        if offset > (committed.end if committed is not None else 0):
            self._fail(f"follower {host} has a high watermark {offset} that nobody had")

    def acknowledged(self, key: Key, next_offset: int) -> None:
        """acks=all is answered (6)."""
        self.ack_count += 1
        committed = self._committed.get(key)
        if committed is None or next_offset > committed.end:
            self._fail(f"offset {next_offset} of {key[1]} is acknowledged and not committed")
        if _find(self._image, key) is None:
            return  # the topic is deleted, and its logs are going
        durable = [
            host
            for (host, its_key), copy in self._copies.items()
            if its_key == key and copy.durable_end >= next_offset
        ]
        if len(durable) < MIN_ISR:
            self._fail(f"offset {next_offset} of {key[1]} is acknowledged, durable on {durable}")

    def controller_committed(self, epoch: int, current: int) -> None:
        """(10)"""
        if epoch != current:
            self._fail(f"the controller of epoch {epoch} committed; {current} is elected")

    # Metadata

    def metadata_changed(self, before: ClusterImage, now: ClusterImage) -> None:
        """(4)"""
        if now.version != before.version + 1:
            self._fail(f"version {now.version} follows {before.version}")
        self._image = now
        for broker in now.brokers.values():
            former = before.brokers.get(broker.id)
            if former is not None and broker.epoch < former.epoch:
                self._fail(f"the epoch of broker {broker.id} goes back")
        for topic in now.topics.values():
            old_topic = before.topics_by_id.get(topic.id)
            for index, partition in enumerate(topic.partitions):
                if old_topic is None or index >= len(old_topic.partitions):
                    continue
                old = old_topic.partitions[index]
                if old is not partition:
                    self._check_partition(index, old, partition)
                    self._check_in_sync((topic.id, index), "when the metadata changed")

    def _check_partition(self, index: int, old: PartitionImage, new: PartitionImage) -> None:
        self.isr_change_count += old.isr != new.isr
        if new.leader_epoch < old.leader_epoch or new.partition_epoch <= old.partition_epoch:
            self._fail(f"the epochs of partition {index} go back: {old}, {new}")
        if new.leader != old.leader and new.leader_epoch == old.leader_epoch:
            self._fail(f"partition {index} has another leader in the same epoch: {old}, {new}")
        if not new.isr or not set(new.isr) <= set(new.replicas):
            self._fail(f"the in-sync set of partition {index} is wrong: {new}")
        if new.leader >= 0 and new.leader not in new.isr:
            self._fail(f"the leader of partition {index} is not in sync: {new}")

    # Inside

    def _check_has_committed(self, host: int, key: Key, what: str) -> None:
        committed = self._committed.get(key)
        copy = self._copies.get((host, key))
        if committed is None or not committed.end:
            return
        if copy is None or copy.crcs.get(committed.end) != committed.crc:
            self._fail(
                f"host {host}, {what}, does not have what is committed of partition {key[1]}, up "
                f"to {committed.end}"
            )

    def _check_in_sync(self, key: Key, when: str) -> None:
        """All members of the in-sync set have what is committed, durably (5)."""
        partition, committed = _find(self._image, key), self._committed.get(key)
        if partition is None or committed is None:
            return
        for member in partition.isr:
            copy = self._copies.get((member, key))
            if copy is None or copy.durable_end < committed.end:
                self._fail(
                    f"{when}: in-sync replica {member} of partition {key[1]} has "
                    f"{copy and copy.durable_end}, but {committed.end} is committed"
                )

    def _fail(self, text: str) -> None:
        raise self._world.violation(text)


def _find(image: ClusterImage, key: Key) -> PartitionImage | None:
    topic = image.topics_by_id.get(key[0])
    return topic.partitions[key[1]] if topic and key[1] < len(topic.partitions) else None
