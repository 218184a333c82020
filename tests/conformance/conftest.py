"""Fixtures of the conformance tests: `broker` (each one there is), clients and Apache's tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.brokers import SETTINGS, BrokerUnderTest
from tests.peers.cache import PeerMissing
from tests.peers.clients import CLIENTS
from tests.peers.java_runtime import ToolRunner, classpath
from tests.peers.kafka import start_kafka
from tests.peers.secured import Secured, start_secured
from tests.peers.servers import Server, start_millstream, start_workers

A_WORKER = "one of two workers"
MARKS = {
    "java": [pytest.mark.java],
    # As the newer client, in a JVM of its own.
    "java-3.9": [pytest.mark.java, pytest.mark.slow],
    # It may have to be compiled first.
    "franz-go": [pytest.mark.timeout(900)],
}


_BROKERS: dict[str, Any] = {"broker": "session", "own_broker": "module", "secured": "module"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    kinds: list[Any] = ["millstream"]
    peer = metafunc.config.getoption("--peer")
    if peer == "kafka":
        kinds.append(pytest.param("apache-kafka", marks=pytest.mark.java))
    elif peer == "workers" and "client" in metafunc.fixturenames:
        kinds.append("workers")
    if getattr(metafunc.module, "ALSO_ON_A_WORKER", False):
        kinds.append(pytest.param(A_WORKER, marks=pytest.mark.slow))
    for fixture, scope in _BROKERS.items():
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, kinds, indirect=True, scope=scope)


@pytest.fixture(scope="session")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerUnderTest]:
    """A running broker, shared by all tests of the session: use fresh topics and groups."""
    server = start_broker(request.param, tmp_path_factory.mktemp(request.param), SETTINGS)
    yield under_test(request.param, server)
    server.kill()  # nothing of it is needed, and a clean stop flushes all that was written


@pytest.fixture(scope="module")
def own_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerUnderTest]:
    """A broker for one module, with its OWN_SETTINGS, whose cluster-wide state it may change."""
    settings = SETTINGS | getattr(request.module, "OWN_SETTINGS", {})
    server = start_broker(request.param, tmp_path_factory.mktemp(request.param), settings)
    yield under_test(request.param, server)
    server.stop()


@pytest.fixture(scope="module")
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    """A broker for one module, with listeners of all kinds, SECURED_USERS and OWN_SETTINGS."""
    settings = SETTINGS | getattr(request.module, "OWN_SETTINGS", {})
    users = getattr(request.module, "SECURED_USERS", ())
    running = start_secured(request.param, tmp_path_factory.mktemp("secured"), users, settings)
    yield running
    running.stop()


def start_broker(kind: str, directory: Path, settings: Mapping[str, str]) -> Server:
    if kind == "millstream":
        return start_millstream(directory / "data", settings)
    if kind in ("workers", A_WORKER):
        return start_workers(directory / "data", 2, settings)
    return start_kafka(directory, settings)


def under_test(kind: str, server: Server) -> BrokerUnderTest:
    return BrokerUnderTest(server, is_one_worker=kind == A_WORKER)


@pytest.fixture(autouse=True)
def _names_of_transactions(request: pytest.FixtureRequest) -> None:
    """Their coordinators are on the worker that the tests ask."""
    if "transactions" in request.module.__name__ and "broker" in request.fixturenames:
        request.getfixturevalue("broker").choose_names()


def client_parameters(*names: str) -> list[Any]:
    """Clients to parametrise `client` with, each with its marks."""
    return [pytest.param(name, marks=MARKS.get(name, ())) for name in names or CLIENTS]


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Any:
    """A client by name, made ready or skipped with the reason."""
    return prepared(request.param)


def prepared(name: str) -> Any:
    try:
        CLIENTS[name].prepare()
    except PeerMissing as missing:
        pytest.skip(f"{name}: {missing}")
    return CLIENTS[name]


@pytest.fixture(scope="session", autouse=True)
def _close_clients() -> Iterator[None]:
    yield
    for client in CLIENTS.values():
        client.close()


@pytest.fixture(scope="session")
def tools() -> Iterator[ToolRunner]:
    """Apache's command-line tools, all in one JVM."""
    try:
        classpath("kafka")
    except PeerMissing as missing:
        pytest.skip(f"Apache Kafka's tools: {missing}")
    runner = ToolRunner()
    yield runner
    runner.close()
