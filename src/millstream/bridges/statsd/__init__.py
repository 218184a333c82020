"""StatsD and DogStatsD over UDP.

lines.py       pure: packets, lines, samples
intervals.py   pure: aggregates per interval
receiver.py    the socket, and what the kernel dropped
"""
