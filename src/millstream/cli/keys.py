"""`millstream keys`: subjects' keys of crypto-shredding; forgets subjects, with a receipt."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.options import AsJson
from millstream.cli.output import console, note, print_json
from millstream.shredding.forgetting import check_receipts
from millstream.shredding.forgetting import forget as forget_subject
from millstream.shredding.opening import POSTGRES, open_keys

app = typer.Typer(
    help="Manage subjects' keys of crypto-shredding: rotate, forget.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)

Store = Annotated[
    str,
    typer.Option(
        "--keys",
        envvar="MILLSTREAM_KEYS",
        metavar="DIR|postgresql://...",
        help="The store of keys.",
    ),
]
Receipts = Annotated[
    Path | None,
    typer.Option(
        "--receipts", metavar="FILE", help="The chain of receipts. Default: in the directory."
    ),
]
Subject = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="Whose keys, as producers name it.")
]


@app.command()
def forget(
    subject: Subject,
    keys: Store,
    receipts: Receipts = None,
    reason: Annotated[str, typer.Option("--reason", help="For the receipt: a ticket.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget a subject: delete its keys, so that nobody can read its data any more.

    This reaches all copies of the data, and cannot be undone. Programs that run may have a key in
    memory for another minute.

    [bold]Examples[/bold]

    \b
      millstream keys forget alice --keys /secure/keys --reason "ticket 4711"
      millstream keys forget alice --keys postgresql://keys.internal/keys --receipts receipts.jsonl
    """
    file = receipts_of(keys, receipts)
    if not yes:
        if not sys.stdin.isatty():
            raise usage_error("add --yes to forget without a question")
        typer.confirm(f"delete all keys of {subject} for good?", abort=True)
    receipt = forget_subject(
        open_keys(keys), subject, receipts=file, requested_by=getpass.getuser(), reason=reason
    )
    if as_json:
        print_json(receipt)
        return
    console().print(
        f"deleted {len(receipt['keys'])} keys; receipt {receipt['number']} in {file}", markup=False
    )


@app.command()
def rotate(subject: Subject, keys: Store) -> None:
    """Give a subject a new key for what is produced from now on; older values stay readable.

    [bold]Examples[/bold]

    \b
      millstream keys rotate alice --keys /secure/keys
    """
    key = open_keys(keys).rotate(subject)
    console().print(f"the current key is {key.id.hex()}", markup=False)


@app.command()
def status(keys: Store, receipts: Receipts = None, as_json: AsJson = False) -> None:
    """Count the subjects that have keys, and check the chain of receipts.

    [bold]Examples[/bold]

    \b
      millstream keys status --keys /secure/keys
    """
    file = receipts_of(keys, receipts)
    subjects = open_keys(keys).subject_count()
    problems = check_receipts(file)
    count = len(file.read_bytes().splitlines()) if file.exists() else 0
    if as_json:
        print_json({"subjects": subjects, "receipts": count, "problems": problems})
    else:
        console().print(f"{subjects} subjects, {count} receipts", markup=False)
    if problems:
        raise CommandFailed("; ".join(problems))
    if count and not as_json:
        note("the chain of receipts is intact")


def receipts_of(keys: str, receipts: Path | None) -> Path:
    if receipts is not None:
        return receipts
    if keys.startswith(POSTGRES):
        raise usage_error("name a file with --receipts: receipts are not kept in the database")
    return Path(keys.removeprefix("file://")) / "receipts.jsonl"
