"""Errors of administration, as the command line reports them."""

from __future__ import annotations

from millstream.admin.errors import InvalidArgument, OperationFailed
from millstream.cli.failures import EXIT_FAILED, EXIT_USAGE, explain


def test_bad_argument_is_an_error_of_usage() -> None:
    for error, exit_code in (
        (InvalidArgument("not a span"), EXIT_USAGE),
        (OperationFailed("refused"), EXIT_FAILED),
    ):
        failure = explain(error)
        assert failure is not None
        assert (str(failure), failure.exit_code) == (str(error), exit_code)
