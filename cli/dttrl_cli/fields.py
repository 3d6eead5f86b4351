"""Settings as command-line options: one option per setting, so that flags and YAML cannot drift apart.

``@settings(TrainConfig)`` gives a command one option for each setting. The command receives the options that
the user gave, and only those, as the dict ``given``; they override the YAML file, which overrides defaults.
The help text is the field's description with its real default; the panel is the section's.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from dttrl.method.methods import OLDER
from dttrl.ranges import SampleRange
from dttrl.section import flag
from dttrl.settings.commands import CommandSettings, Setting, settings_of

GIVEN = "given"
PANELS = (
    "Model", "Questions", "Method", "Sampling", "vLLM", "Server", "Scoring", "Optimisation",
    "OpenRLHF", "Evaluation", "Run",
)  # fmt: skip
"""The order in which a help page shows the panels."""
_SCALARS = (bool, int, float, str, Path)


def settings(
    model: type[CommandSettings], *, leave_out: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces the parameter ``given`` of a command by the settings of ``model``.

    ``leave_out`` names settings that the command has as arguments or options of its own. Settings of earlier
    releases are options that ``--help`` does not show.
    """
    # The last place of a setting is the choice that it belongs to; the default choice is the first.
    tags = {field.discriminator for field in model.model_fields.values()}
    known = {
        name: places[0 if name in tags else -1]
        for name, places in settings_of(model).items()
        if name not in leave_out
    }
    chosen = sorted(known.items(), key=lambda item: PANELS.index(_panel(item[1])))
    types = {name: _annotation(places) for name, places in settings_of(model).items()}
    parameters = [_parameter(name, setting.info, _panel(setting), types[name]) for name, setting in chosen]
    if "label" in known:
        parameters += [_older(name) for name in OLDER]
    fields = {parameter.name for parameter in parameters}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapped(**arguments: Any) -> None:
            given = {
                name: _value(arguments[name], types.get(name))
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


def _annotation(places: Sequence[Setting]) -> Any:
    """Return the type of a setting; the field that tells choices apart takes the names of all of them."""
    annotations = [place.info.annotation for place in places]
    if all(get_origin(annotation) is Literal for annotation in annotations):
        return Literal[tuple(dict.fromkeys(word for each in annotations for word in get_args(each)))]
    return annotations[-1]


def _older(name: str) -> inspect.Parameter:
    declared = f"{flag(name)}/--no-{flag(name)[2:]}" if name == "monotone" else flag(name)
    kind: Any = bool if name == "monotone" else str
    annotation: Any = Annotated[kind | None, typer.Option(declared, hidden=True)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _parameter(name: str, info: FieldInfo, panel: str, type_: Any) -> inspect.Parameter:
    kind, repeated, metavar = _option_type(type_)
    declarations = [f"{flag(name)}/--no-{flag(name)[2:]}"] if kind is bool else [flag(name)]
    option = typer.Option(
        *declarations,
        help=_help(info, repeated=repeated),
        show_default=False,
        metavar=metavar,
        rich_help_panel=panel,
    )
    annotation: Any = Annotated[(list[kind] if repeated else kind) | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _panel(setting: Setting) -> str:
    extra = setting.info.json_schema_extra
    return str(extra["panel"]) if isinstance(extra, dict) else setting.section.panel


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
    if SampleRange in options:
        return str, False, "N|LOW..HIGH"
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


def _value(value: Any, type_: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if type(None) in _options(type_) and isinstance(value, str) and value.lower() == "none":
        return None
    return value
