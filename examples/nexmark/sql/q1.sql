-- What is each bid in euros?
-- Pinned: exact decimals, DECIMAL(23, 3), so nothing is rounded.
SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, "dateTime", extra
FROM bid
