"""Values of a file, each with its check."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.bridges import values
from millstream.errors import ConfigError


def test_values_are_those_of_the_table() -> None:
    table = {"a": "x", "b": ["y"], "c": 3, "d": True, "e": "239.1.1.1:5"}
    assert values.text_of(table, "a", "[t]") == "x"
    assert values.texts_of(table, "b", "[t]") == ("y",)
    assert values.number_of(table, "c", "[t]", 1, 0, 5) == 3
    assert values.flag_of(table, "d", "[t]", default=False)
    assert values.udp_of(table, "e", "[t]") == "239.1.1.1:5"
    assert values.one_of(table, "a", "[t]", ("x", "z"), "z") == "x"


def test_values_that_are_missing_have_defaults() -> None:
    assert values.text_of({}, "a", "[t]", default="x") == "x"
    assert values.texts_of({}, "a", "[t]") == ()
    assert values.number_of({}, "a", "[t]", 7, 0) == 7
    assert values.interface_of({}, "[t]") == "0.0.0.0"
    assert values.tables_of({}, "hooks") == []


def test_secret_is_a_string_a_file_or_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s").write_text("from the file\n")
    monkeypatch.setenv("A_SECRET_OF_THE_TEST", "from the environment")
    found = [
        values.secret_of(it, "[t]", tmp_path)
        for it in ("plain", {"file": "s"}, {"env": "A_SECRET_OF_THE_TEST"})
    ]
    assert found == ["plain", "from the file", "from the environment"]


def test_nearest_name_is_suggested() -> None:
    with pytest.raises(ConfigError, match="unknown name 'lisen'; did you mean 'listen'"):
        values.refuse_unknown(["lisen"], ("listen", "topic"), "[t]")
    with pytest.raises(ConfigError, match="known: listen, topic"):
        values.refuse_unknown(["zzz"], ("listen", "topic"), "[t]")
