"""What all tests share: the `--peer` option, which adds Apache Kafka beside Millstream."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

from tests.conformance.differences import DIFFERENCES

# An example may take as long as a busy machine makes it: no test asserts a time.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Where a shell starts the tests in the background, interrupts are ignored, and by all that they
# start: those who interrupt a program want it to hear.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--peer",
        choices=["kafka"],
        help="run the conformance tests against Apache Kafka as well, as the oracle",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"declared differences from Apache Kafka: {len(DIFFERENCES)}")
    for name, difference in DIFFERENCES.items():
        terminalreporter.write_line(f"  {name}: {difference.reason}")
