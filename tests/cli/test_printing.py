"""Lines for people and for programs; the details are in test_consume, through a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from millstream.cli.cluster import Cluster
from millstream.cli.formats import Format, decoder
from millstream.cli.printing import RecordPrinter


@pytest.mark.parametrize("as_json", [False, True])
def test_printer_writes_one_line_a_record_and_counts(
    ok: Callable[..., str],
    bootstrap_servers: str,
    topic: str,
    as_json: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ok("produce", topic, "--key", "k", "--whole", stdin="line\nbreak")
    consumer = Cluster.connect(bootstrap_servers).consumer(**{"auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    record = None
    while record is None:
        record = consumer.poll(0.1)
    consumer.close()
    text = decoder(Format.TEXT)
    printer = RecordPrinter(text, text, as_json=as_json, keys=True)
    capsys.readouterr()
    printer.print(record)
    out = capsys.readouterr().out
    assert printer.printed == 1
    if as_json:
        assert out.count("\n") == 1
        assert json.loads(out)["value"] == "line\nbreak"
    else:
        assert out == "k\tline\nbreak\n"
