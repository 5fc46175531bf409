"""Connections of clients: their limits, and the bounds on heads and bodies that the application has not seen yet."""
