"""The quick way through the options of `millstream serve`."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.main import load_command
from millstream.cli.serving import (
    CONFIG,
    CONSOLE,
    CONSOLE_ALLOW_HOST,
    CONSOLE_CLIENT_CONFIG,
    CONSOLE_DEFAULT,
    CONSOLE_TLS_CERTIFICATE,
    CONSOLE_TLS_KEY,
    DATA,
    LISTEN,
    LOG_FORMAT,
    METRICS,
    NODE_ID,
    SET,
    WORKERS,
    ZOOKEEPER,
    ServeOptions,
    complete,
    parse_plainly,
    with_cluster,
)


def test_plain_options_are_read_without_typer(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.touch()
    arguments = [
        "--listen",
        "h:1",
        "--data",
        "d",
        "--config",
        str(file),
        "-s",
        "a=1",
        "--set",
        "b=",
    ]
    assert parse_plainly(arguments) == ServeOptions("h:1", "d", file, ("a=1", "b="))
    assert parse_plainly([]) == ServeOptions()
    assert parse_plainly(["--workers", "2"]) == ServeOptions(workers=2)
    metrics = ["--metrics", "127.0.0.1:9404", "--log-format", "json"]
    assert parse_plainly(metrics) == ServeOptions(metrics="127.0.0.1:9404", log_format="json")
    assert with_cluster(ServeOptions(metrics="h:1", log_format="json")) == (
        "millstream.metrics.listener=h:1",
        "millstream.log.format=json",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--listen"],
        ["--listen=h:1"],
        ["--listen", "--data"],
        ["--no-such", "x"],
        ["x", "y"],
        ["--config", "no-such-file"],
        ["--workers", "two"],
        ["--log-format", "xml"],
    ],
)
def test_whatever_needs_an_explanation_is_left_to_typer(arguments: list[str]) -> None:
    assert parse_plainly(arguments) is None


def test_options_are_those_of_the_typer_command() -> None:
    declared = {tuple(it.opts) for it in load_command("serve").params if it.name != "help"}
    assert declared == {
        LISTEN,
        DATA,
        CONFIG,
        SET,
        WORKERS,
        ZOOKEEPER,
        NODE_ID,
        METRICS,
        LOG_FORMAT,
        CONSOLE,
        CONSOLE_CLIENT_CONFIG,
        CONSOLE_ALLOW_HOST,
        CONSOLE_TLS_CERTIFICATE,
        CONSOLE_TLS_KEY,
    }


def test_console_without_an_address_gets_the_default() -> None:
    assert complete([]) == []
    assert complete(["--console"]) == ["--console", CONSOLE_DEFAULT]
    assert complete(["--console", "--data", "d"]) == ["--console", CONSOLE_DEFAULT, "--data", "d"]
    assert complete(["--console", "h:1"]) == ["--console", "h:1"]
    options = parse_plainly(complete(["--console", "--data", "d"]))
    assert options is not None
    assert (options.console, options.data) == (CONSOLE_DEFAULT, "d")
