"""Settings from a YAML file and flags, and back: the file holds flat names, flags win over it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from dttrl.data.validation import one_line
from dttrl.errors import InputError
from dttrl.settings.commands import LENIENT, CommandSettings

CHOICES = frozenset({"engine", "backend", "method", "label"})
"""Settings that decide which others are read."""

SettingsT = TypeVar("SettingsT", bound=CommandSettings)


def load_config(
    model: type[SettingsT],
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    lenient: bool = False,
) -> SettingsT:
    """Return the settings of a YAML file with ``overrides`` (given flags) on top.

    Relative paths in a file are relative to the working directory, as they are on the command line. Raises
    :class:`InputError`, one line naming file and field, for unreadable YAML, unknown fields, bad values and
    settings that do nothing. The last are passed over in the file of an older run (``lenient``), and where a
    flag chooses another engine, backend or method than the file was written for.
    """
    given = dict(overrides or {})
    values = {**(read_fields(path) if path is not None else {}), **given}
    try:
        if path is not None and CHOICES & given.keys():
            values = model.model_validate(values, context={LENIENT: True}).flat() | given
        return model.model_validate(values, context={LENIENT: lenient})
    except ValidationError as error:
        named = str(next(iter(error.errors()[0]["loc"][-1:]), ""))
        origin = "options" if path is None or named in given else str(path)
        raise InputError(f"{origin}: {first_problem(error)}") from None


def dump_config(config: CommandSettings) -> str:
    """Return the resolved settings as YAML that :func:`load_config` reads back to an equal object."""
    return str(yaml.safe_dump(config.flat(), sort_keys=False, allow_unicode=True))


def read_fields(path: Path) -> dict[str, object]:
    """Return the fields of a YAML file, dashes in their names as underscores.

    Raises :class:`InputError`, one line with the file and where known the line, for what cannot be read, is
    no mapping, or gives a field twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such configuration file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where is not None else ""
        raise InputError(f"{path}: not valid YAML{line}") from None
    except (ValueError, OverflowError, RecursionError) as error:  # dates and numbers that YAML cannot make
        raise InputError(f"{path}: not valid YAML ({one_line(error)})") from None
    _refuse_repeated(path, node)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(f"{path}: must be a mapping of fields to values, found a {type(values).__name__}")
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def _refuse_repeated(path: Path, node: yaml.Node | None) -> None:
    """Raise where a field is given twice: YAML would silently take the last."""
    lines: dict[str, int] = {}
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if not isinstance(key, yaml.ScalarNode):
            continue
        name, line = key.value.replace("-", "_"), key.start_mark.line + 1
        if name in lines:
            field = name.replace("_", "-")
            raise InputError(
                f"{path}: line {line} gives {field} again, which line {lines[name]} gave already"
            )
        lines[name] = line


def first_problem(error: ValidationError) -> str:
    """Return what is wrong first, in one line that names the setting."""
    problem = error.errors()[0]
    place = problem["loc"]
    # A problem of a section as a whole names what it is about itself.
    name = str(place[-1]).replace("_", "-") if len(place) > 1 else ""
    message = str(problem["msg"]).removeprefix("Value error, ")
    given = problem.get("input")
    if problem["type"] == "missing":
        return f"{name} is needed and was not given"
    if problem["type"] == "union_tag_invalid":
        context = problem["ctx"]
        name, given = context["discriminator"].strip("'"), context["tag"]
        message = f"Input should be one of {context['expected_tags']}"
    if not name or message.startswith(f"{name} {given!r} "):  # it names the field and the value itself
        return message
    named = isinstance(given, str) and repr(given) in message
    shown = f" (got {given!r})" if isinstance(given, str | int | float | bool) and not named else ""
    return f"{name}: {message}{shown}"
