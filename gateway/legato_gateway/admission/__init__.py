"""Who may start now, who waits in the gateway, who is refused. Pure: no I/O."""
