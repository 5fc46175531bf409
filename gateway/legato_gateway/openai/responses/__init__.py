"""OpenAI's Responses API, as a chat: bodies, items, events, and responses stored for a time."""
