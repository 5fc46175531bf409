"""`/ui` of the control port: a page of plain HTML, CSS and scripts, and the state that it shows."""
