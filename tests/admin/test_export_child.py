"""The request of an export arrives as it was asked."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from millstream.admin.browsing import Asked, Start
from millstream.admin.export_child import asked_of


@pytest.mark.parametrize(
    "asked",
    [
        Asked(),
        Asked(Start.TIME, time_ms=5, partitions=(0, 7), count=10, is_committed_only=True),
        Asked(Start.FROM, positions={3: 2**40}, offset=9),
    ],
)
def test_request_survives_json(asked: Asked) -> None:
    assert asked_of(json.loads(json.dumps(asdict(asked)))) == asked
