"""Values that were encrypted with subjects' keys (`millstream.shredding`), as a reader gets them.

With the option `shreddingKeys`, the address of a store of keys, values are decrypted before they
are decoded: whole ones, and fields of JSON documents. The value of a forgotten subject is null, as
that of a tombstone; so is its field. Others pass as they are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from millstream.shredding.envelope import TEXT_PREFIX, BadEnvelope, is_encrypted
from millstream.shredding.shredder import Forgotten, Shredder

if TYPE_CHECKING:
    from millstream.pipelines.reading.options import ReadOptions
    from millstream.records.columns import Columns

_FIELD = f'"{TEXT_PREFIX}'.encode()


def decrypted(options: ReadOptions, topic: str, columns: Columns) -> Columns:
    """The records with values that can be read. A value that was changed, or moved from another
    topic, stays as it is where rows are decoded, and is a bad record then; of raw ones, raises
    `BadEnvelope`."""
    if options.shredding_keys is None:
        return columns
    import pyarrow as pa

    from millstream.pipelines.reading.archived import binary_buffers
    from millstream.pipelines.shredding import shredder_of
    from millstream.records.arrow import binary_array

    shredder = shredder_of(options.shredding_keys)
    is_raw = options.row_schema is None
    values = binary_array(columns.values, columns.row_count).to_pylist()
    changed = [
        it if it is None else decrypted_value(shredder, it, topic, is_raw=is_raw) for it in values
    ]
    return columns._replace(values=binary_buffers(pa.array(changed, pa.binary())))


def decrypted_value(
    shredder: Shredder, value: bytes, topic: str, *, is_raw: bool = True
) -> bytes | None:
    """None if the subject was forgotten."""
    try:
        if is_encrypted(value):
            return shredder.decrypt(value, topic=topic)
        if _FIELD in value:
            document = json.loads(value)
            if isinstance(document, dict):
                return json.dumps(shredder.decrypt_fields(document, topic=topic)).encode()
    except Forgotten:
        return None
    except BadEnvelope:
        if is_raw:
            raise
    except ValueError:
        pass  # no JSON: as it is
    return value
