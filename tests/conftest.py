"""What all tests share: the `--peer` option, which adds Apache Kafka beside Millstream, and servers
that several rooms use."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from millstream.testing.zookeeper import ZooKeeperProcess
from tests.conformance.differences import DIFFERENCES
from tests.drawing import EXPLORING, draws
from tests.peers.cache import PeerMissing
from tests.peers.opensearch import OpenSearchServer, running_opensearch
from tests.peers.redis import RedisServer, running_redis
from tests.peers.zookeeper import SecuredZooKeeper, running_secured_zookeeper, running_zookeeper

# An example may take as long as a busy machine makes it: no test asserts a time. Examples are the
# same in every run, so that a failure is one of the change that it is seen with; others, and more
# of them, are drawn with `--hypothesis-profile exploring`, as `make test-all` does.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile(EXPLORING, **PATIENT)
settings.register_profile("patient", **PATIENT, derandomize=True, max_examples=draws(100))
settings.load_profile("patient")

# Where a shell starts the tests in the background, interrupts are ignored, and by all that they
# start: those who interrupt a program want it to hear.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Collecting makes hundreds of thousands of objects that live as long as the tests: a quarter of its
# time was the garbage collector's. It ignores them from then on.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Rewrite the asserts of tests only, and not those of the package because it has a plugin: a
    broker in a thread imports modules as well, and two threads must not parse at once (SystemError
    in `ast.parse` before Python 3.11.8, python/cpython#106905)."""
    marked: set[str] = vars(config.pluginmanager.rewrite_hook)["_must_rewrite"]
    marked.discard("millstream")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # some extension modules report what is left at the end


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--peer",
        choices=["kafka", "workers"],
        help="run the conformance tests against Apache Kafka as well, as the oracle; or those with "
        "real clients, which find the leaders of partitions, against two workers",
    )
    parser.addoption(
        "--screenshots",
        action="store_true",
        help="write the pictures of the console to docs/images (tests/console/test_pictures.py)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`slow_with("postgres")`: with that parameter the test is slow.

    The tests of the whole project come first: some take long, and at the end of a run the other
    processes would be idle meanwhile.
    """
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)
    for item in items:
        names = {it for mark in item.iter_markers("slow_with") for it in mark.args}
        parameters = item.name.partition("[")[2].removesuffix("]")
        if any(f"-{name}-" in f"-{parameters}-" for name in names):
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"declared differences from Apache Kafka: {len(DIFFERENCES)}")
    for name, difference in DIFFERENCES.items():
        terminalreporter.write_line(f"  {name}: {difference.reason}")


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    try:
        yield from running_redis()
    except PeerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def opensearch() -> Iterator[OpenSearchServer]:
    try:
        yield from running_opensearch()
    except PeerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperProcess]:
    """One for all tests of a worker; each uses a chroot of its own, and none stops it."""
    try:
        with running_zookeeper() as server:
            yield server
    except PeerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def secured_zookeeper() -> Iterator[SecuredZooKeeper]:
    """One for all tests of a worker, as `zookeeper`."""
    try:
        with running_secured_zookeeper() as server:
            yield server
    except PeerMissing as missing:
        pytest.skip(str(missing))
