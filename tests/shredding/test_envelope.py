"""The bytes of encrypted values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.shredding.envelope import (
    BadEnvelope,
    Envelope,
    associated_data,
    from_text,
    is_encrypted,
    is_encrypted_text,
    to_text,
    unpack,
)


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=12, max_size=12), st.binary())
def test_envelope_is_read_as_it_is_written(key_id: bytes, nonce: bytes, content: bytes) -> None:
    envelope = Envelope(key_id, nonce, content + bytes(16))
    packed = envelope.pack()
    assert is_encrypted(packed)
    assert unpack(packed) == envelope
    assert from_text(to_text(packed)) == packed
    assert is_encrypted_text(to_text(packed))


@pytest.mark.parametrize("value", [b"", b"MSE1", b"MSE1" + bytes(43), b"other" + bytes(100)])
def test_other_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(BadEnvelope, match=f"{len(value)} bytes"):
        unpack(value)


def test_text_that_is_no_base64_is_refused() -> None:
    with pytest.raises(BadEnvelope, match="no encrypted value"):
        from_text("mse1:%%%")


@given(st.binary(), st.text(), st.text(), st.binary(), st.text(), st.text())
def test_associated_data_differs_with_each_part(
    key: bytes, topic: str, field: str, key2: bytes, topic2: str, field2: str
) -> None:
    same = (key, topic, field) == (key2, topic2, field2)
    assert (associated_data(key, topic, field) == associated_data(key2, topic2, field2)) == same
