"""Who is asking: API keys, and proxies whose word on tenants is taken."""
