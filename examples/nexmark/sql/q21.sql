-- By which number is the channel of each bid known?
-- Pinned: a bid of an unknown channel whose URL names no channel_id, or an empty one, gives no row.
SELECT * FROM (
    SELECT
        auction,
        bidder,
        price,
        channel,
        CASE lower(channel)
            WHEN 'apple' THEN '0'
            WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2'
            WHEN 'baidu' THEN '3'
            ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')
        END AS channel_id
    FROM bid
)
WHERE channel_id IS NOT NULL
