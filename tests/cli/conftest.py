"""The command line in this process, and a real broker for it to talk to."""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from millstream.cli.entry import main
from millstream.cli.options import BOOTSTRAP_VARIABLE, CLIENT_CONFIG_VARIABLE
from tests.conformance.brokers import SETTINGS
from tests.peers.kafka import start_kafka
from tests.peers.servers import start_millstream

NUMBERS = itertools.count()


class Outcome(NamedTuple):
    exit_code: int
    out: str
    err: str


Run = Callable[..., Outcome]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The command line reaches any Kafka cluster: with `--peer kafka` it has to show it."""
    if "bootstrap_servers" in metafunc.fixturenames:
        kinds: list[Any] = ["millstream"]
        if metafunc.config.getoption("--peer") == "kafka":
            kinds.append(pytest.param("apache-kafka", marks=pytest.mark.java))
        metafunc.parametrize("bootstrap_servers", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def bootstrap_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a running broker, shared by all tests: use fresh names."""
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "millstream":
        server = start_millstream(directory / "data", SETTINGS)
    else:
        server = start_kafka(directory, SETTINGS)
    yield server.bootstrap
    server.kill()  # nothing of it is needed, and a clean stop flushes all that was written


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command of `millstream` in this process."""
    monkeypatch.delenv(CLIENT_CONFIG_VARIABLE, raising=False)
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def run_command(*arguments: str, stdin: str = "") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(list(arguments))
        captured = capsys.readouterr()
        code = exit_.value.code
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run_command


@pytest.fixture
def cli(run: Run, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Like `run`, with the broker as the default cluster."""
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, bootstrap_servers)
    return run


@pytest.fixture
def ok(cli: Run) -> Callable[..., str]:
    """Runs a command that must succeed; returns its output."""

    def run_command(*arguments: str, stdin: str = "") -> str:
        outcome = cli(*arguments, stdin=stdin)
        assert outcome.exit_code == 0, outcome.err
        return outcome.out

    return run_command


@pytest.fixture
def name() -> str:
    """A name that no other test has used."""
    return f"t{os.getpid()}-{next(NUMBERS)}"


@pytest.fixture
def topic(ok: Callable[..., str], name: str) -> str:
    """A fresh topic of three partitions."""
    ok("topic", "create", name, "--partitions", "3")
    return name
