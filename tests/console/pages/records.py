"""Topics with records for the tests of their pages."""

from __future__ import annotations

import json

from millstream.admin.outgoing import Outgoing, send
from millstream.client.topics import NewTopic, create_topics
from tests.console.conftest import Console

NOW_MS = 1_763_415_243_123

# Attempts to become HTML, a script, a formula, a terminal's command, another direction, ...
HOSTILE = [
    b"<script>document.title = 'owned'</script>",
    b'"><img src=x onerror=alert(1)>',
    b'=HYPERLINK("http://evil.example")',
    b"\x1b]0;owned\x07\x1b[2J",
    "\u202egnp.exe".encode(),
    b"\xff\xfe\x00<b>",
    b"[" * 20_000,
    b'{"__proto__": {"owned": true}, "a": "</script><script>alert(1)</script>"}',
    b"{{ 7 * 7 }}{% raw %}",
    b"</pre></td></tr></table><h1>owned</h1>",
]


def make_topic(console: Console, name: str, records: list[Outgoing], partitions: int = 1) -> None:
    with console.cluster() as cluster:
        create_topics(cluster, [NewTopic(name, partitions)])
        if records:
            send(cluster, name, records, now_ms=NOW_MS)


def orders(count: int, partitions: int = 1, since_ms: int = NOW_MS) -> list[Outgoing]:
    return [
        Outgoing(
            json.dumps({"order": n, "amount": n * 1.5, "user": f"user-{n % 5}"}).encode(),
            b"user-%d" % (n % 5),
            [("trace-id", b"t-%d" % n)],
            n % partitions,
            since_ms + n,
        )
        for n in range(count)
    ]


def hostile() -> list[Outgoing]:
    return [Outgoing(it, it, [("<i>name</i>", it)], 0, NOW_MS) for it in HOSTILE]
