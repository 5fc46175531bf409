"""`/ui` of the control port: a page of plain HTML, CSS and scripts, and its data."""
