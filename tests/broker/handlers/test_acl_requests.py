"""Filters of requests about access control entries."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from millstream.broker.handlers._acl_requests import filter_of
from millstream.errors import ApiError
from millstream.security.acls import AclFilter
from tests.broker.handlers.test_delete_acls import EVERYTHING


def test_filter_of_everything() -> None:
    assert filter_of(SimpleNamespace(**EVERYTHING)) == AclFilter()


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("resource_type_filter", "resource type"),
        ("pattern_type_filter", "pattern type"),
        ("operation", "operation"),
        ("permission_type", "permission type"),
    ],
)
@pytest.mark.parametrize("number", [0, 77, -1])
def test_unknown_number_is_refused(field: str, name: str, number: int) -> None:
    with pytest.raises(ApiError, match=f"unknown {name}"):
        filter_of(SimpleNamespace(**(EVERYTHING | {field: number})))
