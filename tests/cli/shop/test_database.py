"""The demo's PostgreSQL: it starts, is found missing, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.shop import database
from millstream.cli.shop.database import Database, find_programs, why_missing


@pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
def test_database_starts_with_logical_decoding_and_stops() -> None:
    import psycopg

    server = Database()
    try:
        server.start()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        assert server._directory is not None
        directory = server._directory
        assert (directory / "data").exists()
    finally:
        server.stop()
    assert not directory.exists()


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(database, "INSTALLED", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert find_programs() is None
    assert "apt-get install postgresql" in str(why_missing())


def test_newest_version_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(database, "INSTALLED", tmp_path)
    for version in ("9.6", "15", "16"):
        folder = tmp_path / version / "bin"
        folder.mkdir(parents=True)
        for name in database.PROGRAMS:
            (folder / name).touch()
    (tmp_path / "16" / "bin" / "postgres").unlink()  # a client without the server
    assert find_programs() == tmp_path / "15" / "bin"


def test_server_of_root_runs_as_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.os, "geteuid", lambda: 0)
    account = database.account_for_server()
    assert account is None or account.pw_name in database.ACCOUNTS
    monkeypatch.setattr(database.os, "geteuid", lambda: 1000)
    assert database.account_for_server() is None
