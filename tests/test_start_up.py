"""What a start must not wait for (docs/decisions/0008-start-up.md): modules, not milliseconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND_LINE = ["typer", "rich", "pydantic", "confluent_kafka"]
SLOW_PACKAGES = ["importlib.metadata", "email.message", "argparse", "re2", "kio.schema"]
LATER = [
    "millstream.console",
    "millstream.admin",
    "starlette",
    "uvicorn",
    "jinja2",
    "anyio",
    "millstream.coordination.group_records",
    "millstream.coordination.groups",
    "millstream.broker.coordinators.runtime",
    "millstream.broker.coordinators.groups",
    "millstream.broker.coordinators.lag",
    "millstream.broker.handlers.join_group",
    "millstream.storage.cleaner",
]

START = "from millstream import Broker; broker = Broker.start()"
SERVE = """
from millstream.broker import process
from millstream.cli.entry import main
process.run = lambda config: None  # the broker's own start is measured above
main(["serve", "--listen", "127.0.0.1:0"])
"""
FIRST_GROUP = """
import asyncio, tempfile
from millstream.protocol.apis import CoordinatorKind
from millstream.broker.server import BrokerServer
from millstream.config.broker import BrokerConfig

async def find() -> None:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": tempfile.mkdtemp()}
    server = BrokerServer(BrokerConfig.from_values(settings))
    await server.start()
    await server.coordinators.find(CoordinatorKind.GROUP, "g")
    await server.stop()

asyncio.run(find())
"""


def imported_by(program: str, directory: Path) -> set[str]:
    report = "\nimport sys; print('imported', *sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program + report],
        capture_output=True,
        text=True,
        check=True,
        cwd=directory,
    )
    (line,) = [it for it in ran.stdout.splitlines() if it.startswith("imported ")]
    return set(line.split()[1:])


def test_import_of_millstream_is_nearly_free(tmp_path: Path) -> None:
    imported = imported_by("import millstream", tmp_path)
    assert [name for name in imported if name.startswith("millstream")] == ["millstream"]
    assert not imported & {*COMMAND_LINE, *SLOW_PACKAGES, "asyncio", "ssl"}


@pytest.mark.parametrize("module", [*COMMAND_LINE, *SLOW_PACKAGES, *LATER])
def test_start_of_a_broker_does_not_import(module: str, started: set[str]) -> None:
    assert module not in started


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return imported_by(START, tmp_path_factory.mktemp("start"))


def test_serve_does_not_import_the_command_line_library(tmp_path: Path) -> None:
    assert not imported_by(SERVE, tmp_path) & {*COMMAND_LINE, *SLOW_PACKAGES}


def test_first_group_brings_what_coordinates_groups(tmp_path: Path) -> None:
    imported = imported_by(FIRST_GROUP, tmp_path)
    assert "millstream.broker.coordinators.groups" in imported
    assert "millstream.storage.cleaner" not in imported
