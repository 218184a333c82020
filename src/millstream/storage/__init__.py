"""The log on disk. It knows bytes and offsets; never messages, sockets or asyncio."""
