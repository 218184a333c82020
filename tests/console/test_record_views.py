"""What requests ask of a topic, and the registry that a page asks."""

from __future__ import annotations

import shlex

import pytest

from millstream.admin.browsing import Asked, Start
from millstream.admin.reading import Header
from millstream.client.schema_registry import RegistryError, RegistrySettings, UnknownSchema
from millstream.console.actions import Refused
from millstream.console.record_views import (
    UNKNOWN_MAX,
    Fields,
    Schemas,
    header_text,
    shell_quoted,
    sql_text,
    whole,
)
from millstream.errors import MillstreamError
from tests.peers.schema_registry import running_registry

NOW_MS = 1_763_415_243_123.0


def asked(**parameters: str) -> Asked:
    return Fields.of(parameters).asked(NOW_MS)


def test_fields_are_the_newest_records_by_default() -> None:
    assert asked() == Asked()
    assert asked(start="nonsense", count="many", key="?", value="?") == Asked()


def test_fields_have_limits() -> None:
    assert asked(count="100000").count == 500
    assert asked(count="0").count == 1
    assert whole("9" * 30, 7) == 7
    assert whole("-5", 7) == -5


def test_fields_name_positions() -> None:
    assert asked(start="offset", at="17", partition="2") == Asked(
        Start.OFFSET, offset=17, partitions=(2,)
    )
    assert asked(start="before", at="0:5,1:6").positions == {0: 5, 1: 6}
    assert asked(committed="1").is_committed_only


def test_times_are_in_the_zone_of_the_browser() -> None:
    utc = asked(start="time", at="2025-11-17T12:00").time_ms
    east = asked(start="as-of", at="2025-11-17T12:00", zone="60").time_ms
    assert utc - east == 3_600_000
    assert asked(start="time", at="15m").time_ms == NOW_MS - 900_000


@pytest.mark.parametrize(
    "parameters",
    [
        {"start": "offset", "at": ""},
        {"start": "offset", "at": "-1"},
        {"start": "offset", "at": "<b>"},
        {"start": "time", "at": ""},
        {"start": "time", "at": "soon"},
        {"start": "as-of", "at": "9999999999999d"},
        {"start": "before", "at": "x"},
        {"partition": "-1"},
        {"partition": "4294967296"},
        {"partition": "all"},
    ],
)
def test_fields_that_make_no_sense_are_refused(parameters: dict[str, str]) -> None:
    with pytest.raises(MillstreamError):
        asked(**parameters)


def test_zone_of_another_planet_is_limited() -> None:
    assert asked(start="time", at="2025-11-17", zone="99999").time_ms > 0
    with pytest.raises(Refused):
        asked(start="offset", at="")


def test_headers_are_short_and_visible() -> None:
    assert header_text(Header("trace", b"1", 1)) == "trace: 1"
    assert header_text(Header("\udcff\x1b", None, 0)) == "\\xff␛: null"
    assert len(header_text(Header("n" * 999, b"v" * 999, 999))) < 130


def test_registry_that_failed_is_left_alone_for_a_while() -> None:
    with running_registry() as registry:
        schemas = Schemas(RegistrySettings((registry.url,), patience_ms=1000))
        number = registry.add("s", '"int"')
        assert schemas.schema(number).text == '"int"'
        for _ in range(3):
            with pytest.raises(UnknownSchema):
                schemas.schema(99)
        assert len([it for it in registry.requests if "99" in it]) == 1


def test_command_is_quoted_for_a_shell() -> None:
    assert shell_quoted("a = 'b'") == "\"a = 'b'\""
    for text in ('"', "$(rm)", "`rm`", "a\\", "!x", "a\nb"):
        assert shlex.split(shell_quoted(text)) == [text]
        assert shell_quoted(text).startswith("'")
    assert sql_text("it's") == "'it''s'"


def test_registry_that_is_away_is_asked_once_for_all_ids() -> None:
    schemas = Schemas(RegistrySettings(("http://127.0.0.1:1",), patience_ms=1))
    with pytest.raises(RegistryError) as first:
        schemas.schema(1)
    with pytest.raises(RegistryError) as second:
        schemas.schema(2)
    assert second.value is first.value


def test_ids_that_are_unknown_are_limited() -> None:
    with running_registry() as registry:
        schemas = Schemas(RegistrySettings((registry.url,), patience_ms=60_000))
        number = registry.add("s", '"int"')
        assert schemas.schema(number).text == '"int"'
        for unknown in range(1000, 1000 + 2 * UNKNOWN_MAX):
            with pytest.raises(RegistryError):
                schemas.schema(unknown)
        assert len(registry.requests) == UNKNOWN_MAX + 1
        assert schemas.schema(number).text == '"int"'  # known ones are not asked for
