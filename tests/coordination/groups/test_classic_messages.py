"""What a request's version means."""

from __future__ import annotations

import pytest

from millstream.coordination.groups.classic_messages import JoinRequest


def join(api_version: int) -> JoinRequest:
    return JoinRequest("g", "", None, "c", "/h", "consumer", (), 10_000, 60_000, api_version)


@pytest.mark.parametrize(
    ("version", "requires_id", "can_skip"),
    [(3, False, False), (4, True, False), (8, True, False), (9, True, True)],
)
def test_join_version_says_what_the_client_can(
    version: int, requires_id: bool, can_skip: bool
) -> None:
    request = join(version)
    assert (request.requires_member_id, request.can_skip_assignment) == (requires_id, can_skip)
