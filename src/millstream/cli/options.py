"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.failures import usage_error

BOOTSTRAP_VARIABLE = "MILLSTREAM_BOOTSTRAP_SERVERS"
CLIENT_CONFIG_VARIABLE = "MILLSTREAM_CLIENT_CONFIG"
BOOTSTRAP_DEFAULT = "127.0.0.1:9092"

BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        help="The cluster to talk to.",
        rich_help_panel="Connection",
    ),
]

ClientConfig = Annotated[
    Path | None,
    typer.Option(
        "--client-config",
        envvar=CLIENT_CONFIG_VARIABLE,
        metavar="FILE",
        help="A properties file of client settings, e.g. for TLS and SASL.",
        rich_help_panel="Connection",
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Home = Annotated[
    str | None,
    typer.Option(metavar="HOME", help="Directory for local files. Default: .millstream."),
]


def parse_assignments(assignments: list[str], option: str) -> dict[str, str]:
    """`["name=value", ...]` as a dictionary; `option` names the culprit in the error."""
    parsed: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise usage_error(f"{option} {assignment!r}: write it as name=value")
        parsed[name.strip()] = value
    return parsed


def hand_down(
    context: typer.Context, bootstrap_server: str | None, client_config: Path | str | None
) -> None:
    """Make what was given before a command count for it: the options of each command fall back to
    the environment."""
    given = {BOOTSTRAP_VARIABLE: bootstrap_server, CLIENT_CONFIG_VARIABLE: client_config}
    context.with_resource(_variables({name: str(it) for name, it in given.items() if it}))


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them: commands may run in another process's Python."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
