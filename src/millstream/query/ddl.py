"""Columns as text (`config/columns.py`), as an Arrow schema."""

from __future__ import annotations

import pyarrow as pa

from millstream.archive.typed import arrow_schema
from millstream.config import columns


def parse_columns(text: str) -> pa.Schema:
    """The schema; raises `ConfigError` that shows where the text goes wrong."""
    return arrow_schema(columns.parse_columns(text))
