-- What do auctions of a category sell for, on average?
-- Pinned: a bid counts from the auction's opening to its expiry, both included. An auction without
-- such a bid does not count. The average is sum / count without its fraction, as in Flink. The second
-- column's name is the benchmark's, the first is called `id` there.
-- A stream changes a category's row with every auction that closes (Flink's: with every higher bid): the
-- last one by category is the answer.
SELECT category, CAST(sum(final) // count(*) AS BIGINT) AS final
FROM (
    SELECT auction.id, auction.category, max(bid.price) AS final
    FROM auction
    JOIN bid ON bid.auction = auction.id
        AND bid."dateTime" BETWEEN auction."dateTime" AND auction.expires
    GROUP BY auction.id, auction.category
)
GROUP BY category
