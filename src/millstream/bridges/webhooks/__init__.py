"""Webhooks out: each endpoint is a share group, signed by Standard Webhooks 1.0.

attempts.py    pure: requests, what an answer means, when to pause
addresses.py   which addresses may be called (SSRF)
posting.py     one request, to an address that was checked
endpoint.py    the share group
"""
