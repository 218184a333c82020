"""What SQL in the sandbox cannot do."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from millstream.query.sandbox import open_sandbox

SECRET = pa.table({"secret": ["of this process"]})


def test_registered_tables_can_be_read() -> None:
    with open_sandbox({"records": pa.table({"n": [1, 2]})}, memory_limit_mb=64, threads=1) as it:
        assert it.execute("select sum(n) from records").fetchone() == (3,)


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_text('{file}')",
        "select * from '{file}'",
        "copy (select 1) to '{file}.csv'",
        "attach '{file}.db'",
        "install httpfs",
        "load '{file}'",
        "set memory_limit = '100GB'",
        "set enable_external_access = true",
        "reset lock_configuration",
        "select * from SECRET",
        "select * from secret_table",
    ],
)
def test_everything_else_is_refused(tmp_path: Path, sql: str) -> None:
    secret_table = SECRET
    file = tmp_path / "secret.csv"
    file.write_text("a,b\n1,2\n")
    with open_sandbox({}, memory_limit_mb=64, threads=1) as it, pytest.raises(duckdb.Error):
        it.execute(sql.format(file=file)).fetchall()
    assert secret_table is SECRET
    assert sorted(tmp_path.iterdir()) == [file]


def test_memory_is_limited() -> None:
    with (
        open_sandbox({}, memory_limit_mb=64, threads=1) as it,
        pytest.raises(duckdb.OutOfMemoryException),
    ):
        it.execute("select list(range) from range(100000000)").fetchall()
