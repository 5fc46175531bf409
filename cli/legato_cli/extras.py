"""Names the extra to install when a command needs a package that this installation does not have."""

OWN = "legato_"  # every package of Legato begins like this
LOCAL = "local"
_OF_PACKAGES = {"kopf": "operator", "kubernetes": "operator"}
_OF_COMMANDS = {"worker": "engine", "gateway": "gateway", "operator": "operator"}


def advice(command: str, missing: str) -> str:
    """Says how to install the package `missing`, which `legato COMMAND` failed to import."""
    package = missing.partition(".")[0]
    extra = _OF_COMMANDS.get(command) or _OF_PACKAGES.get(package, LOCAL)
    return f"needs {package}, which is not installed: pip install 'legato[{extra}]'"
