-- Bids as they are: what it costs to read and to write, and nothing else.
-- Each bid gives one row, when it arrives.
SELECT auction, bidder, price, "dateTime", extra
FROM bid
