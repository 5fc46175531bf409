"""What the processes' settings have in common."""


class SettingsError(ValueError):
    """A flag or variable with a value that is not allowed. The text names it, its value and what is allowed."""
