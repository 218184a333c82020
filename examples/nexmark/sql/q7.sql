-- Which bids were the highest of their ten seconds?
-- Pinned: windows start at whole multiples of ten seconds since 1970 and hold [start, start + 10 s); a
-- bid is held against its own window alone (the benchmark's BETWEEN also takes a bid at the very
-- end of a window). Equally high bids are all in the answer. Columns stand under their own names (the
-- benchmark writes price into `bidder` and bidder into `price`).
-- A stream can answer once a window is closed; here all are.
SELECT auction, bidder, price, "dateTime", extra
FROM bid
QUALIFY price = max(price) OVER (PARTITION BY time_bucket(INTERVAL 10 SECOND, "dateTime"))
