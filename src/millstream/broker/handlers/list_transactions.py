"""ListTransactions, v0-2: the transactional ids that this broker coordinates.

* v1: only those that have been open for longer than a duration
* v2: only those whose id matches a regular expression as a whole (RE2's, like all of ours)

Filters by state mind upper and lower case; names that are no states are given back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import may
from millstream.broker.services import RequestContext
from millstream.coordination.groups.regex import matching_topics, validate_regex
from millstream.coordination.transactions.records import TransactionState
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from kio.schema.list_transactions.v2.request import ListTransactionsRequest

    from millstream.coordination.transactions.records import TransactionValue
    from millstream.protocol.messages import Fields

_STATES = {state.label: state for state in TransactionState}


async def list_transactions(context: RequestContext, request: ListTransactionsRequest) -> Fields:
    try:
        listed = await context.services.coordinators.transactions.list_all()
        if request.transactional_id_pattern:
            validate_regex(request.transactional_id_pattern)
            matching = matching_topics(request.transactional_id_pattern, listed)
            listed = {name: listed[name] for name in matching}
    except ApiError as error:
        return {"error_code": error.code, "unknown_state_filters": [], "transaction_states": []}
    is_wanted = _filter(request, context.services.clock.now_ms())
    return {
        "error_code": ErrorCode.NONE,
        "unknown_state_filters": [name for name in request.state_filters if name not in _STATES],
        "transaction_states": [
            {
                "transactional_id": transactional_id,
                "producer_id": value.producer_id,
                "transaction_state": value.state.label,
            }
            for transactional_id, value in listed.items()
            if is_wanted(value)
            and may(
                context,
                Operation.DESCRIBE,
                ResourceType.TRANSACTIONAL_ID,
                transactional_id,
                log_denied=False,
            )
        ],
    }


def _filter(request: ListTransactionsRequest, now_ms: int) -> Callable[[TransactionValue], bool]:
    states = {_STATES.get(name) for name in request.state_filters}
    producer_ids = set(request.producer_id_filters)
    duration_ms = request.duration_filter

    def is_wanted(value: TransactionValue) -> bool:
        return (
            (not states or value.state in states)
            and (not producer_ids or value.producer_id in producer_ids)
            and (duration_ms < 0 or now_ms - value.start_ms > duration_ms)
        )

    return is_wanted
