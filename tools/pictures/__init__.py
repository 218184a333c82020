"""Pictures of what windows, policies, joins and clocks make of the same twelve events, and more.

    python -m tools.pictures            draw them, into docs/images
    python -m tools.pictures --check    say which are not current
    python -m tools.pictures --compute  let the library compute what they show, on Spark

events.py     the twelve events
results.py    what the library makes of them, kept in results.json
svg.py        shapes and text, in light and dark
layout.py     what several pictures have in common
windows.py, stragglers.py, joins.py, clocks.py, derived.py, patterns.py    a picture each
"""
