"""Decides which sequences compute which tokens in the next step. Pure: no I/O, no clock, no device."""
