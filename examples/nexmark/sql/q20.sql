-- Bids in category 10 with all that is known of their auction.
-- Pinned: a join without a bound in time, also after the auction's expiry. Each bid gives at most one
-- row, once both are there.
SELECT
    bid.auction,
    bid.bidder,
    bid.price,
    bid.channel,
    bid.url,
    bid."dateTime" AS "bid_dateTime",
    bid.extra AS bid_extra,
    auction."itemName",
    auction.description,
    auction."initialBid",
    auction.reserve,
    auction."dateTime" AS "auction_dateTime",
    auction.expires,
    auction.seller,
    auction.category,
    auction.extra AS auction_extra
FROM bid
JOIN auction ON bid.auction = auction.id
WHERE auction.category = 10
