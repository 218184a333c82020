-- Which bids are for every 123rd auction, and how much?
SELECT auction, price
FROM bid
WHERE auction % 123 = 0
