"""Signals of a running service, recorded round by round to be replayed by `legato simulate --signals`."""
