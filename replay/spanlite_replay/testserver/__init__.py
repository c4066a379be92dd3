"""A small OpenAI-compatible server whose speed is known: for tests, and to try a replay on.

It streams for real, over HTTP, and batches as an inference engine does; only its words are
made up. Needs aiohttp (the extra `http`).
"""
