"""Files for OpenSSL, and advice for Java's stores."""

from __future__ import annotations

from pathlib import Path

from millstream.security.pem import how_to_convert, private_file


def test_file_is_private_and_gone_in_the_end() -> None:
    with private_file("secret é") as path:
        assert Path(path).read_text(encoding="utf-8") == "secret é"
        assert Path(path).stat().st_mode & 0o077 == 0
    assert not Path(path).exists()


def test_advice_names_the_store() -> None:
    assert "-srckeystore my.jks " in how_to_convert("my.jks")
