-- Who joined and opened an auction within the same ten seconds?
-- Pinned: windows start at whole multiples of ten seconds since 1970 and hold [start, start + 10 s). A
-- person with several auctions in the window gives one row.
-- A stream can answer once a window is closed; here all are.
SELECT DISTINCT
    person.id,
    person.name,
    time_bucket(INTERVAL 10 SECOND, person."dateTime") AS starttime
FROM person
JOIN auction ON auction.seller = person.id
    AND time_bucket(INTERVAL 10 SECOND, auction."dateTime")
        = time_bucket(INTERVAL 10 SECOND, person."dateTime")
