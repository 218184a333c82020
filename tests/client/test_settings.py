"""A client's settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.client.settings import read_client_settings
from millstream.errors import ConfigError


def test_files_are_found_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    file = tmp_path / "there" / "client.properties"
    file.write_text("# mine\nssl.ca.location = certs/ca.pem\nssl.key.location=/keys/me.pem\n")
    monkeypatch.chdir(tmp_path)
    assert read_client_settings(file) == {
        "ssl.ca.location": f"{tmp_path}/certs/ca.pem",
        "ssl.key.location": "/keys/me.pem",
    }


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot read the settings in .*client.properties: No such file"),
        (b"\xff", "client.properties is not UTF-8 text"),
        (b"a=1\n=s3cret", "client.properties: line 2 is not a setting; write name=value"),
    ],
)
def test_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    file = tmp_path / "client.properties"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint) as refused:
        read_client_settings(file)
    assert "s3cret" not in str(refused.value)
