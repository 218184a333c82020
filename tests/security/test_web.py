"""Which URLs are safe; redirects are tested where they matter (keys and tokens)."""

from __future__ import annotations

import pytest

from millstream.security.web import is_safe_url


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("https://id.example/keys", True),
        ("http://localhost:8080/keys", True),
        ("http://[::1]/keys", True),
        ("http://id.example/keys", False),
        ("http://127.0.0.1.id.example/keys", False),
        ("http://127.0.0.1@id.example/keys", False),
        ("https:///keys", False),
        ("file:///keys", False),
        ("keys", False),
    ],
)
def test_plain_http_is_for_this_machine_only(url: str, is_safe: bool) -> None:
    assert is_safe_url(url) is is_safe
