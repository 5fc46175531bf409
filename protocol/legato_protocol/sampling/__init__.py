"""The sampling parameters of a sequence, their limits, and the reasoning part of an output."""
