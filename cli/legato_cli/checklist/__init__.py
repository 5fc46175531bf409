"""The deployment checklist, which `legato doctor -f` and the documentation show."""
