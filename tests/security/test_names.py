"""Names of certificates as Java writes them, and the rules that make principals of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from millstream.security.names import MappingRules, subject_name

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(*parts: x509.NameAttribute[str] | list[x509.NameAttribute[str]]) -> bytes:
    """DER of a certificate of this name; a list is one part with several attributes."""
    name = x509.Name(
        [
            x509.RelativeDistinguishedName(part if isinstance(part, list) else [part])
            for part in parts
        ]
    )
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")]))
        .public_key(KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(KEY, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )


def attribute(
    oid: x509.ObjectIdentifier, value: str, kind: _ASN1Type = _ASN1Type.UTF8String
) -> x509.NameAttribute[str]:
    return x509.NameAttribute(oid, value, kind)


COMMON_NAME, OTHER = NameOID.COMMON_NAME, _ASN1Type

# What `X500Principal.getName()` of Java 21 wrote for the same certificates.
NAMES = [
    (
        (
            attribute(NameOID.COUNTRY_NAME, "DE", OTHER.PrintableString),
            attribute(NameOID.ORGANIZATION_NAME, 'Ex, Inc. "q" <a>;b+c=d#e\\f'),
            attribute(COMMON_NAME, "#lead"),
        ),
        r"CN=\#lead,O=Ex\, Inc. \"q\" \<a\>\;b\+c\=d\#e\\f,C=DE",
    ),
    ((attribute(COMMON_NAME, " space both "),), r"CN=\ space both\ "),
    ((attribute(COMMON_NAME, "   "),), r"CN=\ \ \ "),
    (
        (
            attribute(COMMON_NAME, "Zoë 日本"),
            attribute(NameOID.EMAIL_ADDRESS, "a@b.c", OTHER.IA5String),
            attribute(NameOID.SERIAL_NUMBER, "42", OTHER.PrintableString),
        ),
        "2.5.4.5=#13023432,1.2.840.113549.1.9.1=#16056140622e63,CN=Zoë 日本",
    ),
    (
        (
            [attribute(COMMON_NAME, "a"), attribute(NameOID.USER_ID, "u1")],
            attribute(NameOID.DOMAIN_COMPONENT, "example", OTHER.IA5String),
            attribute(NameOID.STREET_ADDRESS, "s"),
            attribute(NameOID.STATE_OR_PROVINCE_NAME, "BY"),
            attribute(NameOID.LOCALITY_NAME, "M"),
            attribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "x"),
        ),
        "OU=x,L=M,ST=BY,STREET=s,DC=example,CN=a+UID=u1",
    ),
    ((attribute(COMMON_NAME, "nul\0in"),), r"CN=nul\00in"),
    ((attribute(COMMON_NAME, "ü", OTHER.BMPString),), "CN=\\00\ufffd"),
]


@pytest.mark.parametrize(("parts", "text"), NAMES)
def test_names_are_written_as_java_does(
    parts: tuple[x509.NameAttribute[str], ...], text: str
) -> None:
    assert subject_name(certificate(*parts)) == text


def test_long_names_are_read() -> None:
    parts = [attribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "x" * 60) for _ in range(300)]
    assert subject_name(certificate(*parts)) == ",".join(["OU=" + "x" * 60] * 300)


def test_certificate_without_a_name_has_an_empty_one() -> None:
    assert subject_name(certificate()) == ""


def test_what_is_no_certificate_is_refused() -> None:
    whole = certificate(attribute(COMMON_NAME, "x"))
    for cut in range(len(whole)):
        with pytest.raises(ValueError, match="DER"):
            subject_name(whole[:cut])
    for bad in (b"\x30\x00", b"\x30\x02\x30\x00", b"\x02\x01\x01", b"\xff" * 50):
        with pytest.raises(ValueError, match="DER"):
            subject_name(bad)


DN = "CN=Broker-1.example,OU=Data,O=Ex"


@pytest.mark.parametrize(
    ("rules", "mapped"),
    [
        ("DEFAULT", DN),
        ("", DN),
        (r"RULE:^CN=(.*?),OU=Data.*$/$1/", "Broker-1.example"),
        (r"RULE:^CN=(.*?),.*$/$1/L", "broker-1.example"),
        (r"RULE:^CN=(.*?),.*$/$1/U", "BROKER-1.EXAMPLE"),
        (r"RULE:^CN=(.*?)\..*OU=(.*?),.*$/$2-$1/, DEFAULT", "Data-Broker-1"),
        (r"RULE:^OU=.*$/x/,RULE:^CN=.*$/second/,DEFAULT", "second"),
        (r"RULE:^OU=.*$/x/ , DEFAULT ", DN),
        (r"RULE:CN=Broker/x/", None),  # the pattern has to match all of it
        (r"RULE:^CN=.*$/a\/b/", "a/b"),
        (r"RULE:^CN=(.*?),.*$/\$1/", r"\Broker-1.example"),
    ],
)
def test_first_rule_that_matches_counts(rules: str, mapped: str | None) -> None:
    assert MappingRules.parse(rules).apply(DN) == mapped


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAULT,none",
        "RULE:a/b",
        "RULE:^CN=(.*$/$1/",
        "RULE:^CN=(.*)$/$2/",
        "RULE:a/b/X",
        "RULE:a/b/LU",
    ],
)
def test_wrong_rules_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"invalid|names a group"):
        MappingRules.parse(rules)
