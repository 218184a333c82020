"""How much a Fetch reads, and what it notes about the client: shared by both kinds of Fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.replicas.fetch_pacing import BULK_BYTES_MIN, FetchPacer, PartitionKey

if TYPE_CHECKING:
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.services import Client, RequestContext
    from millstream.protocol.wire import Piece

RESPONSE_BYTES_MAX = 1024 * 1024
# If there was no producer for that long: fewer round trips, each of which may wait for a CPU.
QUIET_AFTER_MS = 1000
QUIET_RESPONSE_BYTES_MAX = 4 * 1024 * 1024
PACED_SOFTWARE = "rdkafka"  # in the name of the client software or in its version


def response_bytes_max(context: RequestContext, requested_bytes: int) -> int:
    """How many bytes of records the response may hold, if it is produced now."""
    services = context.services
    now_ms = services.clock.monotonic_ms()
    is_quiet = now_ms - services.load.last_produce_ms >= QUIET_AFTER_MS
    return min(
        max(requested_bytes, 0),
        services.config.fetch_max_bytes,
        context.response_bytes_max(),
        QUIET_RESPONSE_BYTES_MAX if is_quiet else RESPONSE_BYTES_MAX,
    )


def read_records(
    partition: Partition,
    offset: int,
    max_bytes: int,
    committed: bool,
    *,
    may_block: bool,
    may_send_file: bool,
) -> tuple[Piece, list[tuple[int, int]]]:
    """Records, and the producer and first offset of each aborted transaction in them."""
    if may_send_file and not may_block:
        records, aborted = partition.read_to_send(offset, max_bytes=max_bytes, committed=committed)
    elif committed:
        records, aborted = partition.read_committed(
            offset, max_bytes=max_bytes, may_block=may_block
        )
    else:
        return partition.read(offset, max_bytes=max_bytes, may_block=may_block), []
    return records, [(it.producer_id, it.first_offset) for it in aborted]


def count_bulk(client: Client, key: PartitionKey, size_bytes: int, now: float) -> None:
    """Note a response with so many bytes of a partition: bulk reads of some clients are paced."""
    if size_bytes < BULK_BYTES_MIN:
        return
    if client.fetch_pacer is None and PACED_SOFTWARE in client.software:
        client.fetch_pacer = FetchPacer()
    if client.fetch_pacer is not None:
        client.fetch_pacer.answered(key, size_bytes, now)
