"""Decimals as text, with all their digits: 0.0000000001, where Arrow and Python write 1E-10."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_PLAIN_SCALE_MAX = 6  # up to here Arrow writes no exponent


def decimal_texts(decimals: Any) -> Any:
    """An array, or a chunked one, of decimal128 as strings."""
    scale = decimals.type.scale
    if 0 <= scale <= _PLAIN_SCALE_MAX:
        return decimals.cast(pa.string())
    if isinstance(decimals, pa.ChunkedArray):
        return pa.chunked_array([decimal_texts(it) for it in decimals.chunks], pa.string())
    whole = pa.Array.from_buffers(
        pa.decimal128(decimals.type.precision, 0),
        len(decimals),
        decimals.buffers(),
        offset=decimals.offset,
    ).cast(pa.string())
    if scale < 0:
        zeros = pa.scalar("0" * -scale)
        return pc.if_else(
            pc.equal(whole, "0"), whole, pc.binary_join_element_wise(whole, zeros, "")
        )
    digits = pc.utf8_lpad(pc.utf8_ltrim(whole, "-"), scale + 1, "0")
    sign = pc.if_else(pc.starts_with(whole, "-"), "-", "")
    before = pc.utf8_slice_codeunits(digits, 0, -scale)
    after = pc.utf8_slice_codeunits(digits, -scale)
    signed = pc.binary_join_element_wise(sign, before, "")
    return pc.binary_join_element_wise(signed, after, ".")
