"""Addresses and networks that settings name."""

from __future__ import annotations

import pytest

from millstream.security.networks import Networks, is_loopback


@pytest.mark.parametrize(
    ("host", "is_in"),
    [
        ("10.1.2.3", True),
        ("10.1.2.4", False),
        ("192.168.200.7", True),
        ("::ffff:192.168.0.1", True),
        ("2001:db8::17", True),
        ("2001:db9::17", False),
        ("fe80::1%eth0", True),
        ("local", False),
    ],
)
def test_address_is_in_one_of_the_networks(host: str, is_in: bool) -> None:
    networks = Networks(("10.1.2.3", " 192.168.0.0/16", "2001:db8::/32", "fe80::/10"))
    assert (host in networks) == is_in


def test_no_network_has_no_addresses() -> None:
    assert "10.1.2.3" not in Networks(())


@pytest.mark.parametrize("text", ["proxy.example", "10.0.0.0/33", "10.1.2.3/8", "10.0.0"])
def test_other_texts_are_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is not an address or a network"):
        Networks(("10.0.0.1", text))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("", False),
        ("localhost.example", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected
