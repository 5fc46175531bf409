"""Finding configurations of Triton's kernels on the device that they are for, for `legato tune`: `cases` has the
kernels and shapes to time, `search` finds the fastest configuration. Workers tune nothing.
"""
