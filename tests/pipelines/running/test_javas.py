"""Which of the installed Javas is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.pipelines.running.javas import Java, ask_version, choose_java, find_java, java_at


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system whose only Java is the first on the path: Java 17."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(install(tmp_path, "usr/lib/jvm/default", "17.0.15") / "bin"))
    return tmp_path


def install(root: Path, place: str, version: str | None) -> Path:
    home = root / place
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-04-21' >&2\n")
    java.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def chosen(root: Path) -> tuple[int, ...]:
    java = choose_java(root)
    assert java is not None
    return java.version


def test_newest_java_that_spark_supports_is_chosen(root: Path) -> None:
    assert chosen(root) == (17, 0, 15)
    install(root, "usr/lib/jvm/a-21", "21.0.2")
    assert chosen(root) == (21, 0, 2)
    for number, unsupported in enumerate(["24.0.2", "25", "25.0.2", "26.0.1", "11.0.20", "8"]):
        install(root, f"usr/lib/jvm/unsupported-{number}", unsupported)
        assert chosen(root) == (21, 0, 2), unsupported
    install(root, "Library/Java/JavaVirtualMachines/25/Contents/Home", "25.0.3")
    assert chosen(root) == (25, 0, 3)


def test_java_on_the_path_is_chosen_among_equals(root: Path) -> None:
    install(root, "usr/lib/jvm/a", "17.0.19")
    assert chosen(root) == (17, 0, 15)


def test_java_home_is_followed_whatever_else_there_is(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(root, "usr/lib/jvm/a", "25.0.3")
    monkeypatch.setenv("JAVA_HOME", str(install(root, "elsewhere", "26.0.1")))
    assert chosen(root) == (26, 0, 1)
    monkeypatch.setenv("JAVA_HOME", str(root / "nowhere"))
    assert choose_java(root) is None
    assert find_java() is None
    monkeypatch.setenv("JAVA_HOME", "")  # as if it were not set, for Spark too
    assert chosen(root) == (25, 0, 3)


def test_unknown_java_on_the_path_is_better_than_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    home = install(tmp_path, "opt", None)
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert choose_java(tmp_path) == Java(home / "bin" / "java", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose_java(tmp_path) is None


def test_links_lead_to_the_java_that_they_name(root: Path) -> None:
    home = install(root, "jdk", "21.0.2")
    link = root / "java"
    link.symlink_to(home / "bin" / "java")
    assert java_at(link) == Java(home / "bin" / "java", (21, 0, 2))
    assert ask_version(link) == (21,)
