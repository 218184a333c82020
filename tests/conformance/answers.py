"""Apache Kafka's answers to all calls of all users, as a table in `answers.txt`.

Run as a program, it asks Apache Kafka and writes the table.

    fetch v12
      0 responses[my-topic partitions[29 ...]; ...]
        topic-read reader literal
      ...
        others                                 everybody who is not listed with another answer
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.calls import answers_of
from tests.conformance.rights import SETTINGS, USERS, create_world
from tests.peers.secured import start_secured

TABLE = Path(__file__).with_name("answers.txt")
_OTHERS = "others"


def read_answers(path: Path = TABLE) -> dict[str, dict[str, str]]:
    """By user and name of the call."""
    answers: dict[str, dict[str, str]] = {user: {} for user in USERS}
    call = answer = ""
    for line in path.read_text().splitlines():
        if not line.startswith(" "):
            call = line
        elif not line.startswith("    "):
            answer = line.strip()
        elif line.strip() == _OTHERS:
            for by_call in answers.values():
                by_call.setdefault(call, answer)
        else:
            for user in line.split():
                answers[user][call] = answer
    return answers


def write_answers(answers: Mapping[str, Mapping[str, str]], path: Path = TABLE) -> None:
    lines: list[str] = []
    for call in next(iter(answers.values())):
        users: dict[str, list[str]] = {}
        for user, by_call in answers.items():
            users.setdefault(by_call[call], []).append(user)
        lines.append(call)
        ordered = sorted(users.items(), key=lambda item: len(item[1]))
        for index, (answer, them) in enumerate(ordered):
            is_last = index == len(ordered) - 1
            lines += [f"  {answer}", f"      {_OTHERS if is_last else ' '.join(them)}"]
    path.write_text("\n".join(lines) + "\n")


def _record() -> None:
    with tempfile.TemporaryDirectory() as directory:
        broker = start_secured("apache-kafka", Path(directory), USERS, SETTINGS)
        try:
            world = create_world(broker)
            write_answers({user: answers_of(world, user) for user in USERS})
        finally:
            broker.stop()


if __name__ == "__main__":
    _record()
