"""Lines for people and for programs; the details are in test_consume, through a real broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from confluent_kafka import Message

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
    settings = {"group.id": f"g-{topic}", "auto.offset.reset": "earliest"}
    consumer = Cluster.connect(bootstrap_servers).consumer(**settings)
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


def test_printer_counts_a_record_whose_reader_interrupts_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def write(line: str) -> int:
        seen.append(line)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.stdout, "write", write)
    text = decoder(Format.TEXT)
    printer = RecordPrinter(text, text)
    with pytest.raises(KeyboardInterrupt):
        printer.print(Message(topic="topic", partition=0, offset=0, value=b"value"))
    assert seen == ["value\n"]
    assert printer.printed == 1
