-- Bids with what a table from outside knows of them.
-- Pinned: the table is `side_input`, 10,000 rows with keys 0 to 9999 and the key as a text for value; it
-- does not change while the query runs.
SELECT bid.auction, bid.bidder, bid.price, bid."dateTime", side_input.value
FROM bid
JOIN side_input ON bid.auction % 10000 = side_input.key
