"""Replies as they are kept: their encoding, and the bounds of what is remembered."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.rpc.headers import Failure
from millstream.rpc.replies import Reply, ReplyMemory

NOW_MS = 1_700_000_000_000.0


@settings(max_examples=50)
@given(
    st.builds(Reply, st.none() | st.binary(), st.none())
    | st.builds(Reply, st.none(), st.builds(Failure, st.text(), st.text()))
)
def test_replies_are_encoded_and_decoded(reply: Reply) -> None:
    assert Reply.decode(reply.encode()) == reply


@settings(max_examples=50)
@given(st.none() | st.binary())
def test_any_bytes_are_a_reply_or_none(content: bytes | None) -> None:
    Reply.decode(content)
    assert Reply.decode(b"\7what") is None


def test_memory_is_bounded_in_number_and_bytes() -> None:
    memory = ReplyMemory(1000, count_max=3, bytes_max=100)
    for number in range(5):
        memory.put(b"%d" % number, Reply(b"x" * 20), NOW_MS, NOW_MS)
    assert [memory.get(b"%d" % number, NOW_MS) is not None for number in range(5)] == [
        False, False, True, True, True,
    ]  # fmt: skip
    memory.put(b"large", Reply(b"x" * 70), NOW_MS, NOW_MS)
    assert memory.get(b"3", NOW_MS) is None
    assert memory.get(b"large", NOW_MS) is not None
    memory.put(b"larger", Reply(b"x" * 101), NOW_MS, NOW_MS)
    assert memory.get(b"larger", NOW_MS) is None
    memory.put(None, Reply(b""), NOW_MS, NOW_MS)
    assert memory.get(None, NOW_MS) is None


def test_the_first_reply_stays_until_its_time_is_over() -> None:
    memory = ReplyMemory(1000)
    memory.put(b"a", Reply(b"first"), NOW_MS, NOW_MS)
    memory.put(b"a", Reply(b"second"), NOW_MS + 500, NOW_MS + 500)
    assert memory.get(b"a", NOW_MS + 1000) == Reply(b"first")
    assert memory.get(b"a", NOW_MS + 1001) is None
    memory.put(b"a", Reply(b"third"), NOW_MS + 1500, NOW_MS + 1500)
    assert memory.get(b"a", NOW_MS + 1500) == Reply(b"third")
    memory.put(b"old", Reply(b"x"), NOW_MS, NOW_MS + 2000)
    assert memory.get(b"old", NOW_MS) is None
    memory.put(b"b", Reply(b"x"), NOW_MS + 9000, NOW_MS + 9000)
    assert len(memory) == 1  # what is over takes no place
