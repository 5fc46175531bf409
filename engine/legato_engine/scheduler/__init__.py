"""Which sequences compute what in the next step. Pure: no I/O, no clock, no device."""
