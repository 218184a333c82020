"""A log with conditional appends, for the tests of versions, and what they should be."""

from __future__ import annotations

from typing import Any

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError
from millstream.records.batch import iterate_headers, parse_header
from millstream.records.compression import Compression
from millstream.records.record import (
    ControlType,
    Record,
    decode_batch,
    decode_end_transaction,
    encode_batch,
    encode_end_transaction,
)
from millstream.storage.log import Appended
from millstream.storage.steps import run_here
from millstream.storage.version_replay import build_versions
from millstream.storage.versions import check_condition
from tests.storage.cleaning import CompactedStore, MortalFileSystem, compacted

Versions = dict[bytes, tuple[int, int]]


def conditional(condition: str = "version", **changes: object) -> TopicConfig:
    return compacted(millstream_conditional_append=condition, **changes)


def versioned_batch(
    *writes: tuple[bytes | None, str | None],
    event_id: bytes | None = None,
    header: str = "millstream-version",
    value: bytes | None = b"value",
    timestamp: int = 1_700_000_000_000,
    **options: Any,
) -> bytes:
    """One record per (key, version); None leaves the header out."""
    records = []
    for index, (key, version) in enumerate(writes):
        headers = [("other", b"x"), (header, None if version is None else version.encode())]
        if version is None:
            headers.pop()
        if event_id is not None:
            headers.append(("millstream-event-id", event_id + b"/%d" % index))
        records.append(Record(index, timestamp + index, key, value, tuple(headers)))
    return encode_batch(records, **options)


class VersionedStore(CompactedStore):
    """Appends as a partition does."""

    def __init__(
        self, *, config: TopicConfig | None = None, fs: MortalFileSystem | None = None
    ) -> None:
        super().__init__(config=config or conditional(), fs=fs)

    def offer(self, *writes: tuple[bytes | None, int], **options: Any) -> Appended:
        """Raises `ApiError` if the batch is refused."""
        texts = [(key, str(version)) for key, version in writes]
        options.setdefault("timestamp", self.clock.now_ms())
        return self.offer_batch(versioned_batch(*texts, **options))

    def offer_batch(self, batch: bytes) -> Appended:
        log, header = self.log(), parse_header(batch)
        repeated = check_condition(log, batch, header)
        if repeated is not None:
            return repeated
        try:
            appended = self.append_general(batch)
        except ApiError:
            if log.versions is not None:
                log.versions.roll_back()
            raise
        if log.versions is not None:
            log.versions.keep()
        return appended

    def offer_in_transaction(
        self, producer_id: int, *writes: tuple[bytes | None, int], **options: Any
    ) -> Appended:
        return self.offer(
            *writes,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
            **options,
        )

    def end(self, producer_id: int, kind: ControlType) -> None:
        """Append the marker that ends a transaction."""
        self.append_batch(
            encode_end_transaction(
                kind,
                offset=0,
                timestamp=self.clock.now_ms(),
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
            )
        )

    def ready(self) -> VersionedStore:
        """As a broker does at its start."""
        run_here(build_versions(self.log()))
        return self

    def version(self, key: bytes) -> int:
        return self.versions([key])[key][0]

    def versions(self, keys: list[bytes]) -> Versions:
        log = self.log()
        assert log.versions is not None
        found = {key: log.versions.get(key, log.log_start_offset) for key in keys}
        return {key: it if it[0] else (0, -1) for key, it in found.items()}

    def expected(self, keys: list[bytes]) -> Versions:
        """The versions by reading the whole log: of the last records, if they are committed."""
        log = self.log()
        committed: Versions = {}
        pending: dict[int, Versions] = {}
        for segment in log.segments if log.has_files else ():
            data = segment.read_at(segment.size, 0, may_block=True)
            for position, header in iterate_headers(data):
                batch = data[position : position + header.size_bytes]
                if header.is_control:
                    marker = decode_end_transaction(batch) if header.record_count else None
                    ended = pending.pop(header.producer_id, {})
                    if marker is not None and marker[0] is ControlType.COMMIT:
                        committed |= ended
                    continue
                target = committed
                if header.is_transactional:
                    target = pending.setdefault(header.producer_id, {})
                for record in decode_batch(batch):
                    version = dict(record.headers).get("millstream-version")
                    if record.key is not None:
                        target[record.key] = (int(version or b"0"), record.offset)
        seen = {}
        for key in keys:
            version, offset = committed.get(key, (0, -1))
            is_seen = version and offset >= log.log_start_offset
            seen[key] = (version, offset) if is_seen else (0, -1)
        return seen


CODECS = list(Compression)
