-- Which auctions had the most bids in the last ten seconds, asked every two?
-- Pinned: windows start at whole multiples of two seconds since 1970 and hold [start, start + 10 s); the
-- first ones start before the first bid. Auctions with equally many bids are all in the answer. It does
-- not say which window: an auction that leads in several comes several times.
-- A stream can answer once a window is closed; here all are.
WITH counted AS (
    SELECT
        auction,
        time_bucket(INTERVAL 2 SECOND, "dateTime") - hop * INTERVAL 2 SECOND AS starttime,
        count(*) AS num
    FROM bid, range(5) AS hops(hop)
    GROUP BY ALL
)
SELECT auction, num
FROM counted
QUALIFY num = max(num) OVER (PARTITION BY starttime)
