"""What `legato up` does beyond its flags: the service on this machine, and what the terminal shows of it."""
