"""Who may do what over HTTP."""

from __future__ import annotations

from millstream.bridges.http.limits import RecentIds, has_token, is_allowed, is_foreign, is_local


def test_topics_are_allowed_by_pattern_and_internal_ones_never() -> None:
    assert is_allowed("clicks-1", ["orders", "clicks-*"])
    assert not is_allowed("Orders", ["orders"])
    assert not is_allowed("__consumer_offsets", ["*"])
    assert not is_allowed("orders", [])


def test_token_is_compared_whole() -> None:
    assert has_token({}, None)
    assert has_token({"authorization": "bearer abc"}, "abc")
    for wrong in ("Bearer ab", "Basic abc", "abc", "", "Bearer é"):
        assert not has_token({"authorization": wrong}, "abc")


def test_pages_of_other_sites_are_recognized() -> None:
    assert not is_foreign({}, [])
    assert is_foreign({"origin": "https://evil.example"}, ["https://shop.example"])
    assert not is_foreign({"origin": "https://shop.example"}, ["https://shop.example"])
    assert is_foreign({"sec-fetch-site": "cross-site"}, [])
    assert is_foreign({"origin": "null"}, [])


def test_requests_to_this_machine_are_recognized() -> None:
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]:9", "[::1]"):
        assert is_local({"host": host})
    for host in ("evil.example:8080", "localhost.evil.example", "", "127.0.0.1.nip.io", "[::2]:1"):
        assert not is_local({"host": host})


def test_recent_ids_forget_the_oldest() -> None:
    recent = RecentIds(2)
    for message_id in ("a", "b", "a", "c", ""):
        recent.add(message_id)
    assert "a" in recent
    assert "b" not in recent
    assert "" not in recent
