"""What all tests share: the `--peer` option, which adds Apache Kafka beside Millstream."""

from __future__ import annotations

import pytest

from tests.conformance.differences import DIFFERENCES


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
