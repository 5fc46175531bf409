"""Flags of every command: kinds of values, and flags for the fields of settings.

A `ValueKind` is the `type` of an argparse argument, so that a bad value ends the command with exit code 2 and a line
with the flag, the value and the allowed values. Settings are a frozen dataclass: a field without a default is a
required flag.
"""

import dataclasses
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

from legato_protocol import names
from legato_protocol.settings import durations, sizes, values

T = TypeVar("T")
MOST_PROCESSES = 1 << 22  # Linux gives no process a higher id


class SettingsError(ValueError):
    """A flag or variable has a value that is not allowed. The text names it, its value and the allowed values."""


@dataclass(frozen=True, slots=True)
class ValueKind(Generic[T]):
    """A kind of value: its name in help, a parser that raises ValueError, and a formatter for defaults."""

    metavar: str
    parse: Callable[[str], T]
    text: Callable[[T], str] = str
    words: tuple[str, ...] = ()  # all allowed values of an enumeration

    def __call__(self, text: str) -> T:
        """Parses text for argparse, which shows an error's message only for its own kind of error."""
        try:
            return self.parse(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag. `field` names the settings' field, if it is not named like the flag."""

    name: str
    kind: ValueKind[Any]
    help: str
    field: str = ""
    repeated: bool = False
    optional: bool = False  # although the field has no default: without the flag, its value follows from other fields

    @property
    def dest(self) -> str:
        return self.field or self.name.removeprefix("--").replace("-", "_")


PORT: Final = ValueKind("PORT", values.port)
PORT_OR_FREE: Final = ValueKind("PORT", values.port_or_free)
PORT_RANGE: Final = ValueKind("FIRST-LAST", values.port_range)
DURATION: Final = ValueKind("DURATION", durations.parse, durations.text)
SIZE: Final = ValueKind("SIZE", sizes.parse, sizes.text)
HOST: Final = ValueKind("HOST", values.host)
FILE: Final = ValueKind("FILE", lambda text: Path(values.printable(text, "file")))
FOLDER: Final = ValueKind("FOLDER", lambda text: Path(values.printable(text, "folder")))


def whole(metavar: str, least: int, most: int) -> ValueKind[int]:
    """A whole number within bounds."""
    return ValueKind(metavar, lambda text: values.whole(text, least, most))


def real(metavar: str, least: float, most: float) -> ValueKind[float]:
    """A decimal number within bounds."""
    return ValueKind(metavar, lambda text: values.real(text, least, most), "{:g}".format)


def list_of(item: ValueKind[T]) -> ValueKind[list[T]]:
    """One or more values of a kind, separated by commas."""
    return ValueKind(
        f"{item.metavar},…",
        lambda text: [item.parse(part) for part in text.split(",")],
        lambda values: ",".join(map(item.text, values)),
    )


def one_of(metavar: str, allowed: tuple[str, ...]) -> ValueKind[str]:
    """One word of an enumeration."""
    return ValueKind(metavar, lambda text: values.one_of(text, allowed, metavar.lower()), words=allowed)


def text(metavar: str) -> ValueKind[str]:
    """Any printable text."""
    return ValueKind(metavar, lambda text: values.printable(text, metavar.lower()))


def kubernetes_name(metavar: str) -> ValueKind[str]:
    """A name of a Kubernetes object: a DNS label."""
    return ValueKind(metavar, lambda text: values.kubernetes_name(text, metavar.lower()))


def from_annotations(settings: type[Any]) -> tuple[Flag, ...]:
    """Returns the flags of a settings class: one for each field annotated with a kind of value and a help text.

    The kind of a `Literal` is the word for its values in help; a help text that ends with a colon lists them. A further
    annotation is the flag's name, if it is not the field's. A tuple is a flag that may be repeated.
    """
    hints = get_type_hints(settings, include_extras=True)
    return tuple(_flag(field, *get_args(hint)) for field, hint in hints.items() if get_origin(hint) is Annotated)


def _flag(field: str, type_: Any, kind: ValueKind[Any] | str, help: str, name: str = "") -> Flag:
    if isinstance(kind, str):
        kind = one_of(kind, get_args(type_))
        help += ", ".join(kind.words) if help.endswith(": ") else ""
    return Flag(name or f"--{field.replace('_', '-')}", kind, help, field, repeated=get_origin(type_) is tuple)


def add(parser: ArgumentParser, flags: Sequence[Flag], settings: type[Any]) -> None:
    """Adds flags for fields of a settings class, with the fields' defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    for flag in flags:
        default = defaults[flag.dest]
        required = default is dataclasses.MISSING and not flag.optional
        parser.add_argument(
            flag.name,
            dest=flag.dest,
            type=flag.kind,
            metavar=flag.kind.metavar,
            action="append" if flag.repeated else "store",
            required=required,
            default=SUPPRESS,
            help=(flag.help + _note(flag, default, required)).replace("%", "%%"),
        )


def option(parser: ArgumentParser, *names: str, kind: ValueKind[T], help: str, default: T | None = None) -> None:
    """Adds one flag that belongs to no settings class."""
    note = "" if default is None else f" (default: {kind.text(default)})"
    text = (help + note).replace("%", "%%")
    parser.add_argument(*names, type=kind, metavar=kind.metavar, default=default, help=text)


def repeated(parser: ArgumentParser, name: str, *, kind: ValueKind[T], help: str) -> None:
    """Adds one flag that may be given several times, as a list."""
    text = f"{help} (may be repeated)".replace("%", "%%")
    parser.add_argument(name, type=kind, metavar=kind.metavar, action="append", default=[], help=text)


def _note(flag: Flag, default: object, required: bool) -> str:
    if flag.repeated:
        return " (may be repeated)"
    if required:
        return " (required)"
    return "" if default in (None, "", dataclasses.MISSING) else f" (default: {flag.kind.text(default)})"


def given(flags: Namespace, settings: type[Any]) -> dict[str, Any]:
    """Returns the fields of a settings class whose flags were given; repeated flags as tuples without duplicates."""
    fields = [field.name for field in dataclasses.fields(settings)]
    values = {name: vars(flags)[name] for name in fields if name in vars(flags)}
    return {name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value for name, value in values.items()}


def parent(environ: Mapping[str, str]) -> int:
    """Returns the id of the process that this one must not outlive, from its variable; 0 for none. Raises
    SettingsError."""
    try:
        return values.whole(environ.get(names.ENV_PARENT, "0"), 0, MOST_PROCESSES, "process id")
    except ValueError as error:
        raise SettingsError(f"{names.ENV_PARENT}: {error}") from None
