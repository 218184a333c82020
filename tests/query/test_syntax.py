"""What statements name."""

from __future__ import annotations

import duckdb

from millstream.query.syntax import identifiers, table_names


def test_table_names_are_found_wherever_they_stand() -> None:
    with duckdb.connect() as connection:
        for sql, expected in [
            ('with t as (from "my-topic.v1") select * from t, b where x in (from c)', None),
            ("select (select max(x) from a) from b join s.c using (x) where y = ?", None),
            ("explain select * from a", {"a"}),
            ("select * from read_csv('nowhere.csv')", set()),
        ]:
            found = table_names(connection, sql)
            if expected is None:
                assert {"b"} <= found
                assert found & {"my-topic.v1", "s.c"}
            else:
                assert found == expected


def test_identifiers_are_not_taken_from_strings_and_comments() -> None:
    sql = """select o._Error, "_topic" as "a""b" -- _key_bytes
        from orders o where _value like '%_value_bytes%' /* _headers */"""
    assert identifiers(sql) == {"o", "_error", "_topic", 'a"b', "orders", "_value"}
    assert identifiers("_offset > 3 and") == {"_offset"}
    assert identifiers("größe = 'é€' and _error is null") == {"größe", "_error"}
    assert identifiers("_value = 'it") == {"_value"}
