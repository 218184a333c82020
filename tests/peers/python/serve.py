"""The command loop that the three Python programs share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.peers.programs import Record, decode_record, encode_record

Command = dict[str, Any]


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def say_record(record: Record) -> None:
    say(record=encode_record(record))


def serve(
    produce: Callable[[Command, list[Record]], list[tuple[int, int]]],
    consume: Callable[[Command], list[Record]],
    member: Callable[[Command], None],
    transact: Callable[[Command, list[tuple[bool, list[Record]]]], None],
    transform: Callable[[Command], int],
) -> None:
    """Answer commands from stdin until it ends."""
    while line := sys.stdin.readline():
        command = json.loads(line)
        try:
            if "security" in command["config"]:
                from tests.peers.security import TRANSLATIONS

                translate = TRANSLATIONS[Path(sys.argv[0]).stem]
                command["config"] |= translate(command["config"].pop("security"))
            match command["action"]:
                case "produce":
                    records = [decode_record(record) for record in command["records"]]
                    say(positions=produce(command, records))
                case "consume":
                    say(records=[encode_record(record) for record in consume(command)])
                case "transact":
                    transactions = [
                        (each["commit"], [decode_record(record) for record in each["records"]])
                        for each in command["transactions"]
                    ]
                    transact(command, transactions)
                    say(transactions=len(transactions))
                case "transform":
                    say(transactions=transform(command))
                case "member":
                    say(joined=True)
                    return member(command)
        except Exception as error:  # noqa: BLE001 -- whatever the client raises, the test shall see it
            say(error=repr(error))
    return None
