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


def pytest_report_header() -> str:
    return f"conformance: {len(DIFFERENCES)} declared differences from Apache Kafka"
