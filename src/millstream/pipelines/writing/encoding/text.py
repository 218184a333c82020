"""Strings as formats of text need them: valid UTF-8.

Spark does not look at the bytes that `value.cast("string")` takes from a topic. What of them is not
UTF-8 becomes U+FFFD here, as Spark's own `to_json` writes it: a value that breaks the format would
be worse, and one bad record is no reason to stop a query for good.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def valid_utf8(strings: Any) -> Any:
    """The array itself, or one in which what is not UTF-8 is replaced."""
    try:
        strings.validate(full=True)  # compiled: a twentieth of what encoding costs
    except pa.ArrowInvalid:
        kind = strings.type
        raw = strings.view(pa.large_binary() if pa.types.is_large_string(kind) else pa.binary())
        texts = (None if it is None else it.decode("utf-8", "replace") for it in raw.to_pylist())
        return pa.array(list(texts), kind)
    return strings
