"""Time: which one a row is counted by, whose clock it comes from, and when it is too late.

lateness.py    the batch's watermark in every row, and which rows are late by it
clocks.py      event, log-append and processing time; devices whose clocks are wrong
idleness.py    a watermark that moves on when a source has nothing to say
"""
