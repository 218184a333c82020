"""MoldUDP64: a stream of numbered messages over UDP multicast, with re-requests.

packets.py    pure: the framing
gaps.py       pure: order, gaps, what to ask for, when to give up
sockets.py    multicast sockets
inbound.py    a stream to a topic
outbound.py   a partition as a stream, and the log as its re-request server
"""
