"""Schemas as compiled decoders want them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.reading.decoding.fields import describe


def test_types_nest() -> None:
    kind = pa.struct([pa.field("x", pa.list_(pa.decimal128(5, 2)), False)])
    assert describe(pa.field("v", kind), "v", "Avro") == (
        *("v", "struct", True, 0, 0),
        [("x", "array", False, 0, 0, [("item", "decimal", True, 5, 2, [])])],
    )


def test_times_are_for_formats_that_have_them() -> None:
    field = pa.field("v", pa.struct([("t", pa.time64("ns"))]))
    assert describe(field, "v", "Avro", with_times=True)[5][0][1] == "time"
    with pytest.raises(ConfigError, match=r"column v\.t: time64\[ns\] cannot be read from JSON"):
        describe(field, "v", "JSON")
