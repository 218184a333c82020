"""Properties files as Java reads them."""

from __future__ import annotations

import pytest

from millstream.config.properties import parse_properties
from millstream.errors import ConfigError


def test_properties_are_read_as_java_does() -> None:
    text = "a.b = 1\n# no\n! no\n\nc.d:two words\ne f\ng=x\\\n   y\nh=\\u0041\\t\\=\nempty=\n"
    assert parse_properties(text) == {
        "a.b": "1",
        "c.d": "two words",
        "e": "f",
        "g": "xy",
        "h": "A\t=",
        "empty": "",
    }


@pytest.mark.parametrize("line", ["=s3cret", ":s3cret", "= s3cret"])
def test_line_without_a_name_is_refused_without_showing_it(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2 is not a setting; write name=value") as refused:
        parse_properties(f"a=1\n{line}\n")
    assert "s3cret" not in str(refused.value)
