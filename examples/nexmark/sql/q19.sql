-- Which are the ten highest bids of each auction?
-- Pinned: of equally high ones the earlier stands first, then the smaller bidder, channel, url and
-- extra; bids that agree in all these may change places and give the same rows.
-- A stream changes rows with every bid among the ten: the last one by auction and rank is the answer.
SELECT
    auction, bidder, price, channel, url, "dateTime", extra,
    row_number() OVER (
        PARTITION BY auction
        ORDER BY price DESC, "dateTime", bidder, channel, url, extra
    ) AS rank_number
FROM bid
QUALIFY rank_number <= 10
