-- How many bids does a person make in each ten seconds by the clock of the system?
-- Pinned: the clock is `arrival`, the timestamp of the bid's record in the log, since what the clock of
-- a machine says at work can be asked only once. Windows start at whole multiples of ten seconds
-- since 1970 and hold [start, start + 10 s).
SELECT
    bidder,
    count(*) AS bid_count,
    time_bucket(INTERVAL 10 SECOND, arrival) AS starttime,
    time_bucket(INTERVAL 10 SECOND, arrival) + INTERVAL 10 SECOND AS endtime
FROM bid
GROUP BY ALL
