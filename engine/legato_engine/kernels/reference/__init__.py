"""A readable implementation of each operator, with which tests compare all kernels, and its maths."""
