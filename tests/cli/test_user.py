"""`millstream user` against a real broker."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

Ok = Callable[..., str]
MILLSTREAM = Path(sys.executable).with_name("millstream")
PASSWORD = "looking-glass-7531"


@pytest.fixture
def user() -> str:
    return f"u-{uuid.uuid4().hex[:8]}"


def mechanisms(ok: Ok, user: str) -> dict[str, int] | None:
    rows: list[dict[str, Any]] = json.loads(ok("user", "list", "--json"))
    return next((row["mechanisms"] for row in rows if row["user"] == user), None)


def test_user_is_created_listed_and_deleted(ok: Ok, cli: Run, user: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD + "\n")
    said = ok("user", "create", user, "--password-file", str(secret))
    assert said == f"created {user} (SCRAM-SHA-256, SCRAM-SHA-512)\n"
    assert mechanisms(ok, user) == {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}
    table = ok("user", "list")
    assert "ITERATIONS" in table
    assert user in table
    again = cli("user", "create", user, "--password-file", str(secret))
    assert again.exit_code == 1
    assert "exists; --replace gives it a new password" in again.err
    assert ok("user", "delete", user) == f"deleted {user}\n"
    assert mechanisms(ok, user) is None
    gone = cli("user", "delete", user)
    assert gone.exit_code == 1
    assert "there is no user" in gone.err


def test_new_password_replaces_all_old_ones(ok: Ok, user: str) -> None:
    """A mechanism that is not named would keep the old password."""
    ok("user", "create", user, "--generate")
    options = ("--mechanism", "scram-sha-512", "--iterations", "8192", "--json")
    shown = json.loads(ok("user", "create", user, "--generate", "--replace", *options))
    assert len(shown.pop("password")) >= 32
    assert shown == {"user": user, "mechanisms": {"SCRAM-SHA-512": 8192}}
    assert mechanisms(ok, user) == {"SCRAM-SHA-512": 8192}


def test_generated_password_alone_is_a_line(ok: Ok, user: str) -> None:
    first, second = ok("user", "create", user, "--generate").splitlines()
    assert first.startswith("created")
    assert len(second) >= 32


def test_password_from_stdin(ok: Ok, cli: Run, user: str) -> None:
    result = cli("user", "create", user, "--password-file", "-", stdin=PASSWORD + "\n")
    assert result.exit_code == 0
    assert PASSWORD not in result.out + result.err
    assert mechanisms(ok, user) is not None


@pytest.mark.parametrize(
    ("content", "complaint"), [("", "password is empty"), ("a\nb\n", "several lines")]
)
def test_passwords_that_cannot_be(
    ok: Ok, cli: Run, user: str, tmp_path: Path, content: str, complaint: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(content)
    result = cli("user", "create", user, "--password-file", str(secret))
    assert result.exit_code == 1
    assert complaint in result.err
    assert mechanisms(ok, user) is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((), "no password: use --password-file"),
        (("--generate", "--mechanism", "PLAIN"), "it is one of SCRAM-SHA-256, SCRAM-SHA-512"),
        (("--generate", "--password-file", "x"), "not both"),
        (("--generate", "--iterations", "4095"), "4096"),
    ],
)
def test_wrong_options(cli: Run, user: str, options: tuple[str, ...], complaint: str) -> None:
    result = cli("user", "create", user, *options)
    assert result.exit_code == 2
    assert complaint in result.err


def test_password_from_the_terminal_is_not_shown(ok: Ok, user: str, bootstrap_servers: str) -> None:
    """It is asked for twice, and not echoed."""
    parent, child = pty.openpty()
    command = [str(MILLSTREAM), "user", "create", user, "-b", bootstrap_servers]
    # In a session of its own it has no other terminal, not the one that runs the tests.
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, start_new_session=True
    )
    os.close(child)
    shown = b""
    # The space comes when the echo is off and what was typed before has been discarded.
    for prompt in (b"Password: ", b"confirmation: "):
        while prompt not in shown:
            shown += os.read(parent, 1024)
        os.write(parent, PASSWORD.encode() + b"\n")
    with contextlib.suppress(OSError):  # the terminal is closed at the end
        while more := os.read(parent, 1024):
            shown += more
    assert process.wait(60) == 0
    os.close(parent)
    assert PASSWORD.encode() not in shown
    assert b"created" in shown
    assert mechanisms(ok, user) is not None
