-- Who in Oregon, Idaho or California sells in category 10, and in which auctions?
-- Pinned: a join without a bound in time. Each auction gives at most one row, once both are there.
SELECT person.name, person.city, person.state, auction.id
FROM auction
JOIN person ON auction.seller = person.id
WHERE auction.category = 10 AND person.state IN ('OR', 'ID', 'CA')
