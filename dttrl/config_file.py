"""A YAML file of settings as plain fields: each given once, nothing of it checked against a model yet."""

from __future__ import annotations

from pathlib import Path

import yaml

from dttrl.errors import InputError
from dttrl.validation import one_line


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
