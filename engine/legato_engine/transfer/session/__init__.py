"""Hand-offs, (room, attempt): their lifecycle, and the actions of a sender and a receiver."""
