"""`legato up` without its flags: the service on this machine, and its terminal output."""
