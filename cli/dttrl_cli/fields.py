"""Settings models as command-line options: one option a field, so that flags and YAML cannot drift apart.

``@settings(Model)`` gives a command one option for each field of a pydantic model. The command receives the
options that the user gave, and only those, as the dict ``given``; they override the YAML file, which
overrides the model's defaults. The help text is the field's description with its real default; the panel
comes from ``json_schema_extra={"panel": ...}``.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

GIVEN = "given"
PANELS = (
    "Model", "Questions", "Method", "Sampling", "vLLM", "Server", "Scoring", "Optimisation",
    "OpenRLHF", "Evaluation", "Run",
)  # fmt: skip
"""The order in which a help page shows the panels."""
_SCALARS = (bool, int, float, str, Path)


def settings(
    model: type[BaseModel], *, leave_out: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces the parameter ``given`` of a command by the fields of ``model``.

    ``leave_out`` names fields that the command has as arguments or options of its own.
    """
    chosen = [(name, info) for name, info in model.model_fields.items() if name not in leave_out]
    chosen.sort(key=lambda item: PANELS.index(_panel(item[1])) if _panel(item[1]) in PANELS else len(PANELS))
    parameters = [_parameter(name, info) for name, info in chosen]
    fields = {parameter.name for parameter in parameters}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapped(**arguments: Any) -> None:
            given = {
                name: _value(arguments[name], model.model_fields[name])
                for name in fields
                if arguments[name] is not None
            }
            own = {name: value for name, value in arguments.items() if name not in fields}
            command(**own, **{GIVEN: given})

        signature = inspect.signature(command, eval_str=True)
        own_parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in signature.parameters.items()
            if name != GIVEN
        ]
        wrapped.__name__ = command.__name__
        wrapped.__doc__ = command.__doc__
        wrapped.__module__ = command.__module__
        joined = [*own_parameters, *parameters]
        wrapped.__signature__ = inspect.Signature(joined)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in joined}
        return wrapped

    return decorate


def flag(name: str) -> str:
    """Return the option of a field: ``learning_rate`` is ``--learning-rate``."""
    return "--" + name.replace("_", "-")


def _parameter(name: str, info: FieldInfo) -> inspect.Parameter:
    kind, repeated, metavar = _option_type(info.annotation)
    declarations = [f"{flag(name)}/--no-{flag(name)[2:]}"] if kind is bool else [flag(name)]
    option = typer.Option(
        *declarations,
        help=_help(info, repeated=repeated),
        show_default=False,
        metavar=metavar,
        rich_help_panel=_panel(info),
    )
    annotation: Any = Annotated[(list[kind] if repeated else kind) | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _panel(info: FieldInfo) -> str:
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return str(extra.get("panel", "Settings"))


def _option_type(annotation: Any) -> tuple[Any, bool, str | None]:
    """Return the type typer parses, whether the option may be repeated, and how its value is named."""
    options = _options(annotation)
    if type(None) in options:
        kinds = [option for option in options if option is not type(None)]
        kind, repeated, metavar = _option_type(kinds[0] if len(kinds) == 1 else str)
        if repeated or kind in (str, Path):
            return kind, repeated, metavar
        # Typer's number and choice types cannot read the word "none"; pydantic converts the text.
        return str, False, f"<{_metavar(kind)}|none>"
    if len(options) > 1:
        return str, False, None
    origin = get_origin(annotation)
    if origin in (tuple, list, set, frozenset):
        return (get_args(annotation)[0] if get_args(annotation) else str), True, None
    if origin is Literal:
        return annotation, False, None
    return (annotation if annotation in _SCALARS else str), False, None


def _options(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(str(value) for value in get_args(kind))
    return {int: "int", float: "float", bool: "true|false"}.get(kind, "str")


def _help(info: FieldInfo, *, repeated: bool) -> str:
    text = (info.description or "").strip().rstrip(".")
    if repeated and "repeated" not in text:
        text += "; may be repeated"
    if info.is_required():
        text += ". (required)"
    elif "(default:" not in text:  # else the description says it in words
        default = info.get_default(call_default_factory=True)
        text += f". (default: {_shown(default)})"
    return _escape(text.lstrip(". "))


def _shown(default: object) -> str:
    if default is None:
        return "none"
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, (tuple, list, set, frozenset)):
        return ", ".join(str(item) for item in default) or "none"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _escape(text: str) -> str:
    """Keep square brackets of a description from being read as markup of the help page."""
    return text.replace("[", "\\[")


def _value(value: Any, info: FieldInfo) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if type(None) in _options(info.annotation) and isinstance(value, str) and value.lower() == "none":
        return None
    return value
