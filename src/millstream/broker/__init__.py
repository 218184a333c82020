"""The asyncio shell where storage, protocol and coordination meet."""
