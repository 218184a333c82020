-- All bids as files, a folder for each day and minute.
-- Pinned: day and minute of the bid's own time, in UTC. The files' format and number are free: what
-- is compared is their rows with `dt` and `hm`.
SELECT
    auction, bidder, price, "dateTime", extra,
    strftime("dateTime", '%Y-%m-%d') AS dt,
    strftime("dateTime", '%H:%M') AS hm
FROM bid
