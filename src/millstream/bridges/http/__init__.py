"""HTTP to topics and back.

shapes.py        bodies and answers of Confluent's REST API, v2 and v3
signatures.py    signatures of webhooks: Standard Webhooks, GitHub, Stripe
cloudevents.py   CloudEvents 1.0 as requests and as records
limits.py        who may do what, and repeated ids
streaming.py     a topic as server-sent events
app.py           the routes
server.py        uvicorn in a thread
"""
