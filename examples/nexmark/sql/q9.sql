-- Which bid won each auction?
-- Pinned: a bid counts from the auction's opening to its expiry, both included; the highest wins, of
-- equally high ones the earliest, then the smallest bidder, then the smallest `extra`; bids that agree
-- in all these give the same row. An auction without such a bid gives none.
-- A stream can answer once an auction is over, or at once, and change the row with every better bid
-- (Flink's does): the last one by id is the answer.
SELECT
    auction.id,
    auction."itemName",
    auction.description,
    auction."initialBid",
    auction.reserve,
    auction."dateTime",
    auction.expires,
    auction.seller,
    auction.category,
    auction.extra,
    bid.auction,
    bid.bidder,
    bid.price,
    bid."dateTime" AS "bid_dateTime",
    bid.extra AS bid_extra
FROM auction
JOIN bid ON bid.auction = auction.id
    AND bid."dateTime" BETWEEN auction."dateTime" AND auction.expires
QUALIFY row_number() OVER (
    PARTITION BY auction.id
    ORDER BY bid.price DESC, bid."dateTime", bid.bidder, bid.extra
) = 1
