"""The compute process of a worker: one loop over scheduler, runner and hand-offs.

The server imports only `frames`.
"""
