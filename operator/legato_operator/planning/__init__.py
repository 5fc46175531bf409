"""Plans actions and a status from an observation. Pure."""
