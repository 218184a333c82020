"""Claims user names, one after another: `python -m tests.faults.claims_driver <broker> <topic> <me>
<names>`. Says that it is ready and waits for a line, so that all can begin at the same time; then
prints a line for each outcome. Killed and started again, it sends the same commands."""

from __future__ import annotations

import sys

from millstream.events import Accepted, Aggregate, CommandHandler, Event, EventLog, Origin, Refusal


def decide(owner: str, person: str) -> list[Event] | Refusal:
    return Refusal(owner) if owner else [Event("claimed", {"by": person})]


names = Aggregate[str, str]("user name", "", decide, lambda owner, event: str(event.data["by"]))


def main(bootstrap_servers: str, topic: str, person: str, wanted: str) -> None:
    with EventLog(bootstrap_servers, topic) as log:
        handler = CommandHandler(log, names)
        print("ready", flush=True)
        sys.stdin.readline()
        for name in wanted.split(","):
            outcome = handler.handle(name, person, Origin(f"{person} claims {name}"))
            won = isinstance(outcome, Accepted)
            print(name, "won" if won else outcome.reason, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
