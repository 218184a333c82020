-- How many bids did an auction have on a day, by level of price, and how high were they?
-- Pinned: days in UTC; the average is sum / count without its fraction, as in Flink.
-- A stream changes an auction's row of the day with every bid: the last one by auction and day is the
-- answer.
SELECT
    auction,
    strftime("dateTime", '%Y-%m-%d') AS day,
    count(*) AS total_bids,
    count(*) FILTER (WHERE price < 10000) AS rank1_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
    min(price) AS min_price,
    max(price) AS max_price,
    CAST(sum(price) // count(*) AS BIGINT) AS avg_price,
    CAST(sum(price) AS BIGINT) AS sum_price
FROM bid
GROUP BY auction, day
