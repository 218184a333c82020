"""Patterns over sequences of rows.

    from millstream.pipelines import patterns

    spree = patterns.match("small{2,} big", key="card", time="at", within="10 minutes", ...)
    falls = patterns.recognize("PARTITION BY symbol ORDER BY at ... PATTERN (strt down+ up+) ...")

    definition.py     `match`, and what its settings mean
    recognize.py      `recognize`: SQL's MATCH_RECOGNIZE

    spec.py           the settings, parsed and checked
    language.py       the text of patterns
    program.py        a pattern as a program
    automaton.py      its states and transitions, drawn as text
    expressions.py    the text of conditions and measures
    conditions.py     conditions: what Spark evaluates, and code for the matcher
    measures.py       measures: columns of matches
    matcher.py        the compiled pattern, as plain data
    _matcher.pyx      the compiled matcher
    matching.py       the operator of bucketed state

Use what this package exports; its modules are private.
"""

from millstream.pipelines.patterns.definition import Pattern, match
from millstream.pipelines.patterns.recognize import recognize

__all__ = ["Pattern", "match", "recognize"]
