"""What decoders return: the rows that are good, and why each of the others is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.records.columns import Columns

MALFORMED = "malformed"  # not in the format at all
WRONG_TYPE = "wrong type"  # a value that its column cannot hold exactly
MISSING_FIELD = "missing field"  # absent or null where the schema says NOT NULL


class Failure(NamedTuple):
    """A record that does not decode."""

    row: int  # its number within the columns
    reason: str  # one of the above, or a format's own
    message: str  # for people


class Decoded(NamedTuple):
    """The good rows, and the others."""

    batch: pa.RecordBatch  # columns in the order and of the types of the schema
    rows: pa.Array | None  # the numbers (int64) of the rows in `batch`; None: all of them
    failures: list[Failure]  # rising by row


class Decoder(Protocol):
    """Decodes the values of records; used by one thread at a time."""

    def decode(self, columns: Columns) -> Decoded: ...
