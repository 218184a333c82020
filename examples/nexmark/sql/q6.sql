-- What did a seller's last auctions sell for, on average, seen from each of them?
-- Pinned: one row for each auction that has a winning bid (q9's rule, ties included). A seller's
-- auctions follow each other by the time of the winning bid, then by id. The average is over the auction
-- itself and up to ten before it, as the benchmark's SQL has it (its prose, and Beam, say ten in all),
-- without its fraction. Flink cannot run this query.
-- A stream changes rows: an auction that closes later but was won earlier stands before others.
WITH won AS (
    SELECT auction.id, auction.seller, bid.price, bid."dateTime"
    FROM auction
    JOIN bid ON bid.auction = auction.id
        AND bid."dateTime" BETWEEN auction."dateTime" AND auction.expires
    QUALIFY row_number() OVER (
        PARTITION BY auction.id
        ORDER BY bid.price DESC, bid."dateTime", bid.bidder, bid.extra
    ) = 1
)
SELECT seller, CAST(sum(price) OVER last_ones // count(*) OVER last_ones AS BIGINT) AS avg_price
FROM won
WINDOW last_ones AS (
    PARTITION BY seller ORDER BY "dateTime", id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
)
