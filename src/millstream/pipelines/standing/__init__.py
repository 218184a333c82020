"""Standing queries: queries that are stored in a topic and matched with every event.

    from millstream.pipelines.standing import match_queries

    words.py      the words of a text              lexing.py      tokens, and errors with a place
    schemas.py    schemas as text                  fields.py      fields of structs
    kinds.py      types and literals               syntax.py      the grammar and its tree
    templates.py  queries as shapes and values     reference.py   a query on one event
    events.py     a batch of events                terms.py       words, prefixes and phrases in it
    vocabulary.py values of queries as numbers     shapes.py      queries of one shape as columns
    paths.py      how candidates are found         whys.py        why queries match
    segment.py    compiled queries                 stored.py      the queries of a topic over time
    topic.py      the topic                        loading.py     the queries in a worker
    matching.py   `match_queries`, on Spark

All but the last three are pure and do not import Spark. Use what this package exports; its modules
are private.
"""

from millstream.pipelines.standing.matching import match_queries

__all__ = ["match_queries"]
