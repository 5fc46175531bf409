"""The readable truth of each operator, which tests compare all kernels with, and its maths."""
