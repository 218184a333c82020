"""ZeroMQ: PUB/SUB and PUSH/PULL, in both directions.

frames.py     pure: messages as frames, with a number and a sender where the sender is a bridge
numbers.py    pure: what is missing between the numbers of each sender
sockets.py    sockets, bound or connected
inbound.py    a SUB or PULL socket to a topic
outbound.py   a topic to a PUB or PUSH socket
"""
