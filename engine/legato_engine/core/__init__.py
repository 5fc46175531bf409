"""The compute process of a worker: one loop over scheduler, runner and hand-offs.

`frames` is all that the server imports.
"""
