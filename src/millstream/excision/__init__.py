"""Excision: removes records from a topic's history on request, with a receipt.

    plan = find(cluster, selector, topic)      which records, where        selection.py
    job = begin(cluster, plan, ...)            durable; brokers go on      jobs.py
    receipt = finish(cluster, job)             once all replicas have      jobs.py
    verify(cluster, receipt)                   look again                  verification.py

Brokers do the work (`millstream.excised.offsets`, docs/decisions/0048-excision.md); this package
asks for it, waits, and keeps the receipts.
"""
