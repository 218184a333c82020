"""Programs that answer Nexmark's queries, one for each engine, each a process of its own.

    program BOOTSTRAP COUNT QUERY...

reads the topics that `benchmarks.nexmark.load` filled with COUNT events. It says in lines of JSON
`{"ready": true}` when it can begin, and then for each query that it knows
`{"query": "q0", "rows": ..., "seconds": ...}`. `flink.py` and `quix.py` run in environments of
their own (tests/peers/engines.py) and import nothing of ours.
"""
