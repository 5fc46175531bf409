"""Results as text and as an HTML page."""
