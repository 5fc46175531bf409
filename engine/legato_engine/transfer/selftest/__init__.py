"""A test that a transport transfers blocks on this machine and blocks late writes, run before a worker uses it."""
