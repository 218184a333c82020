"""Messages of Millstream's own APIs, as kio has Kafka's: one module per API, with one version.

Their keys begin at 20000. ApiVersions lists them; clients ignore keys that they do not know, as
with the APIs that other distributions of Kafka add.
"""
