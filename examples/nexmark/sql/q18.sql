-- Which was each person's last bid in each auction?
-- Pinned: the last by the bid's own time, not by arrival; of those of one millisecond the one with the
-- greatest price, then channel, url and extra; bids that agree in all these give the same row.
-- A stream changes a row with every later bid: the last one by bidder and auction is the answer.
SELECT auction, bidder, price, channel, url, "dateTime", extra
FROM bid
QUALIFY row_number() OVER (
    PARTITION BY bidder, auction
    ORDER BY "dateTime" DESC, price DESC, channel DESC, url DESC, extra DESC
) = 1
