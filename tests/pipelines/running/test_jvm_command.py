"""The command that starts Spark's JVM, as Spark's launcher gives it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.running.jvm_command import (
    VECTORS,
    ask_launcher,
    launcher_command,
    write_command,
)

pytest.importorskip("pyspark")
SHELL = "pyspark-shell"
ARCHIVE = "-XX:SharedArchiveFile=/archive"


def test_command_is_kept_in_a_file(tmp_path: Path, java: Path, home: Path) -> None:
    path = tmp_path / "command"
    before, after = ask_launcher(java, home)
    write_command(path, java, home, [ARCHIVE])
    kept = json.loads(path.read_text())
    assert kept == {"before": before, "after": after, "archive": [ARCHIVE]}
    assert before[0] == str(java)
    assert VECTORS in after, "class_archive: Spark asks for no module that a cache cannot have"
    write_command(path, java, home, [ARCHIVE], without=[VECTORS])
    kept = json.loads(path.read_text())
    assert kept["after"] == [it for it in after if it != VECTORS]
    assert [it.name for it in tmp_path.iterdir()] == ["command"]


def test_launcher_that_fails_is_quoted(tmp_path: Path, java: Path) -> None:
    with pytest.raises(ConfigError, match=r"launcher ended with 1: .*launcher"):
        launcher_command(java, tmp_path, [SHELL])


def test_command_in_another_order_is_refused(tmp_path: Path, home: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nprintf '\\0\\njava\\0-Xmx4321m\\0-Dother\\0'\n")
    java.chmod(0o755)
    with pytest.raises(ConfigError, match=r"a command that we do not know: \['java', '-Xmx"):
        write_command(tmp_path / "command", java, home, [ARCHIVE])
    assert not (tmp_path / "command").exists()
