"""The numbers and meaning of security protocols."""

from __future__ import annotations

from millstream.security.protocol import SecurityProtocol


def test_protocols_have_kafkas_numbers() -> None:
    assert {it.name: int(it) for it in SecurityProtocol} == {
        "PLAINTEXT": 0,
        "SSL": 1,
        "SASL_PLAINTEXT": 2,
        "SASL_SSL": 3,
    }


def test_protocols_say_what_they_use() -> None:
    assert [it.name for it in SecurityProtocol if it.uses_tls] == ["SSL", "SASL_SSL"]
    assert [it.name for it in SecurityProtocol if it.uses_sasl] == ["SASL_PLAINTEXT", "SASL_SSL"]
