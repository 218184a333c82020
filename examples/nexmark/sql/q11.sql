-- How many bids did a person make in each time of activity, ended by ten seconds of silence?
-- Pinned: bids exactly ten seconds apart are in one session (so in Flink and in Spark). A session ends
-- ten seconds after its last bid.
-- A stream can answer once a session is closed; here all are.
WITH numbered AS (
    SELECT
        bidder,
        "dateTime",
        count(*) FILTER (WHERE starts) OVER (PARTITION BY bidder ORDER BY "dateTime") AS session
    FROM (
        SELECT
            bidder,
            "dateTime",
            coalesce("dateTime" - lag("dateTime") OVER earlier > INTERVAL 10 SECOND, true) AS starts
        FROM bid
        WINDOW earlier AS (PARTITION BY bidder ORDER BY "dateTime")
    )
)
SELECT
    bidder,
    count(*) AS bid_count,
    min("dateTime") AS starttime,
    max("dateTime") + INTERVAL 10 SECOND AS endtime
FROM numbered
GROUP BY bidder, session
