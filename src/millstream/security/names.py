"""Names in certificates, and the principals they become.

    subject_name(der)                   "CN=broker-1,OU=Data,O=Example"
    MappingRules.parse(text).apply(dn)  "broker-1"

A name is written as Java writes it (RFC 2253, `X500Principal.getName()`), since that is what access
control lists of Kafka contain: the last part first, attributes without a short name as their
number and the bytes in hexadecimal. The rules are those of `ssl.principal.mapping.rules`.

Certificates have been checked by OpenSSL before; what is not DER raises `ValueError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_INTEGER, _OBJECT_ID, _SEQUENCE, _SET, _VERSION = 0x02, 0x06, 0x30, 0x31, 0xA0

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
# UTF8, Printable, T61, IA5, General and BMP strings; of other types Java shows the bytes.
_STRINGS = (0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E)
_ESCAPED = ',=+<>#;"\\'


class _Value(NamedTuple):
    tag: int
    content: bytes
    encoded: bytes  # with tag and length


def subject_name(certificate: bytes) -> str:
    """The name of a certificate's subject. Raises `ValueError`."""
    try:
        fields = list(_values(next(_values(_only(certificate, _SEQUENCE))).content))
    except (IndexError, StopIteration):
        raise ValueError("not a certificate in DER") from None
    if fields and fields[0].tag == _VERSION:
        del fields[0]
    # Serial number, algorithm, issuer, validity, subject.
    if len(fields) < 5 or fields[0].tag != _INTEGER or fields[4].tag != _SEQUENCE:
        raise ValueError("not a certificate in DER")
    return name_text(fields[4].content)


def name_text(parts: bytes) -> str:
    """A name from the DER of its parts. Raises `ValueError`."""
    try:
        texts = ["+".join(_attributes(part)) for part in _values(parts)]
    except IndexError:
        raise ValueError("not a name in DER") from None
    return ",".join(reversed(texts))


def _attributes(part: _Value) -> Iterator[str]:
    if part.tag != _SET:
        raise ValueError("not a name in DER")
    for attribute in _values(part.content):
        kind, value = _values(attribute.content)
        if kind.tag != _OBJECT_ID:
            raise ValueError("not a name in DER")
        number = _object_id(kind.content)
        keyword = _KEYWORDS.get(number)
        if keyword is None or value.tag not in _STRINGS:
            yield f"{keyword or number}=#{value.encoded.hex()}"
        else:  # Java reads all of them as UTF-8
            yield f"{keyword}={_escape(value.content.decode('utf-8', 'replace'))}"


def _escape(text: str) -> str:
    escaped = "".join(f"\\{it}" if it in _ESCAPED else it for it in text).replace("\0", "\\00")
    inner = escaped.strip(" \r")
    lead = len(escaped) - len(escaped.lstrip(" \r"))
    before, after = escaped[:lead], escaped[lead + len(inner) :]
    return "".join(f"\\{it}" for it in before) + inner + "".join(f"\\{it}" for it in after)


def _only(data: bytes, tag: int) -> bytes:
    value = next(_values(data))
    if value.tag != tag:
        raise ValueError("not a certificate in DER")
    return value.content


def _values(data: bytes) -> Iterator[_Value]:
    """The values in DER, one after the other. Raises `IndexError` or `ValueError`."""
    position = 0
    while position < len(data):
        tag, length, start = data[position], data[position + 1], position + 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[start : start + count], "big")
            start += count
        end = start + length
        if end > len(data):
            raise ValueError("a value in DER is cut off")
        yield _Value(tag, data[start:end], data[position:end])
        position = end


def _object_id(content: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    replacement: str
    case: str  # L, U or empty


_RULE = re.compile(r"\s*(?:DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")


class MappingRules:
    """Makes the name of a principal out of that of a certificate."""

    def __init__(self, rules: tuple[_Rule | None, ...]) -> None:
        self._rules = rules  # None is DEFAULT

    @classmethod
    def parse(cls, text: str) -> MappingRules:
        """Raises `ValueError`."""
        rules: list[_Rule | None] = []
        position = 0
        while position < len(text.rstrip()):
            found = _RULE.match(text, position)
            if found is None:
                raise ValueError(
                    f"invalid rule {text[position:].strip()!r}: write DEFAULT, or "
                    "RULE:pattern/replacement/ with L or U for lower or upper case"
                )
            rules.append(None if found[1] is None else cls._rule(found))
            position = found.end()
        return cls(tuple(rules) or (None,))

    @staticmethod
    def _rule(found: re.Match[str]) -> _Rule:
        try:
            pattern = re.compile(found[1])
        except re.error as error:
            raise ValueError(f"invalid pattern {found[1]!r}: {error}") from None
        wanted = [int(it) for it in re.findall(r"\$(\d)", found[2])]
        if any(number > pattern.groups for number in wanted):
            raise ValueError(f"{found[2]!r} names a group that {found[1]!r} does not have")
        literal = found[2].replace("\\/", "/").replace("\\", "\\\\")
        return _Rule(pattern, re.sub(r"\$(\d)", r"\\g<\1>", literal), found[3])

    def apply(self, name: str) -> str | None:
        """The name of the principal; None if no rule matches: then nobody is authenticated."""
        for rule in self._rules:
            if rule is None:
                return name
            if rule.pattern.fullmatch(name) is not None:
                mapped = rule.pattern.sub(rule.replacement, name)
                return {"L": mapped.lower(), "U": mapped.upper()}.get(rule.case, mapped)
        return None
