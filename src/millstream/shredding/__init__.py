"""Crypto-shredding: each subject's data is encrypted with a key of its own, and forgetting the
subject is deleting that key.

    keys = DirectoryKeys("/secure/keys")
    shredder = Shredder(keys)
    sent = shredder.encrypt(b"...", subject="alice", topic="orders")
    shredder.decrypt(sent, topic="orders")        # b"..."; raises Forgotten once the key is deleted

Works with any Kafka cluster, and reaches every copy of the data: backups, consumers' tables,
archives. Excision (docs/guides/excision.md) removes the bytes themselves. Needs the extra
`security`. See docs/guides/shredding.md.
"""

from millstream.shredding.directory import DirectoryKeys
from millstream.shredding.shredder import Forgotten, Shredder
from millstream.shredding.store import KeyStore, KeyStoreError, SubjectKey

__all__ = ["DirectoryKeys", "Forgotten", "KeyStore", "KeyStoreError", "Shredder", "SubjectKey"]
