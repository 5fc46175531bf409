"""Tools: what a request may say of them, how a template is given them, and calls found in what a model writes."""
