"""From what was observed to actions and a status. Pure."""
