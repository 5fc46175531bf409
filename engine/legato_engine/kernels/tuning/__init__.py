"""Finding configurations of Triton's kernels on the device that they are for, for `legato tune`: `cases` says what is
timed, `search` which configuration wins. Workers tune nothing.
"""
