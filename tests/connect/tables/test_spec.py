"""What a table may be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.connect.tables.spec import TableSpec, check_tables_differ
from millstream.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": ""}, "no name"),
        ({"name": "a\0b", "key": ("id",)}, "NUL"),
        ({"name": "t", "key": ("",)}, "key column of table 't'"),
        ({"name": "t"}, "needs a key"),
        ({"name": "t", "mode": "replace"}, "needs a key"),
        ({"name": "t", "key": ("a", "a")}, "twice"),
        ({"name": "t", "key": ("a",), "mode": "merge"}, "none of upsert, append, replace"),
        ({"name": "t", "mode": "append", "delete": "gone"}, "deletes nothing"),
        ({"name": "t", "key": ("a",), "delete": "a"}, "cannot mark deletes"),
        ({"name": "Millstream_Progress", "key": ("a",)}, "keep progress"),
    ],
)
def test_table_that_makes_no_sense_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        TableSpec(**fields)


def test_key_may_be_one_word() -> None:
    assert TableSpec("t", "minute").key == ("minute",)  # type: ignore[arg-type]


def test_tables_of_one_batch_must_differ() -> None:
    with pytest.raises(ConfigError, match="users"):
        check_tables_differ([TableSpec("users", ("a",)), TableSpec("Users", ("a",))])
