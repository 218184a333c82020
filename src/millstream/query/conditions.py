"""The condition of a search as SQL. Pure."""

from __future__ import annotations

from millstream.query.search import SearchRequest


def search_condition(request: SearchRequest) -> tuple[str, list[str]]:
    """An SQL condition over the columns of a topic, and its parameters.

    The predicate of the user stands on lines of its own, so that a comment in it ends with it.
    """
    parts: list[str] = []
    parameters: list[str] = []
    if request.text:
        parts.append(
            "(contains(_value, ?) or contains(_key, ?) or len(list_filter(_headers, lambda h: "
            "contains(h.key, ?) or contains(h.value, ?))) > 0)"
        )
        parameters += [request.text] * 4
    if request.header:
        same = "h.key = ?" + ("" if request.header_value is None else " and h.value = ?")
        parts.append(f"len(list_filter(_headers, lambda h: {same})) > 0")
        parameters.append(request.header)
        if request.header_value is not None:
            parameters.append(request.header_value)
    if request.where.strip():
        parts.append(f"(\n{request.where}\n)")
    return " and ".join(parts) or "true", parameters
