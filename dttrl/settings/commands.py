"""The settings of a command: sections, joined, and filled from the flat names of flags and files.

A flat name is a field's alias or name. Within a command it belongs to one section, or to several choices of
one union. :func:`nested` is the only place that maps one to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator
from pydantic.fields import FieldInfo

from dttrl.method.methods import Signal
from dttrl.section import Section, flag, flat_name
from dttrl.settings.choices import Auto, Backend, Engine, OpenRLHF
from dttrl.settings.sections import (
    Evaluation,
    Generation,
    Keeping,
    Model,
    Questions,
    Sampling,
    Scoring,
    Update,
)

LENIENT = "lenient"
"""Key of a validation context: settings that nothing reads are passed over, as old files may hold them."""


class Setting(NamedTuple):
    """One setting of a command: the field of the command that holds its section, and its place there."""

    place: str
    section: type[Section]
    name: str
    info: FieldInfo


class CommandSettings(BaseModel):
    """Settings of a command. Made from flat names or from whole sections; frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _from_flat(cls, given: Any, info: ValidationInfo) -> Any:
        lenient = bool((info.context or {}).get(LENIENT))
        return nested(cls, given, lenient=lenient) if isinstance(given, Mapping) else given

    @model_validator(mode="after")
    def _nothing_unread(self, info: ValidationInfo) -> Self:
        if not (info.context or {}).get(LENIENT):
            for choice, names in self.unread().items():
                for name in names:
                    if self._departs(name):
                        raise ValueError(f"{flag(name)} does nothing with {choice}; leave it out")
        return self

    def sections(self) -> dict[str, Section]:
        """Return the sections by their field."""
        return {name: getattr(self, name) for name in type(self).model_fields}

    def unread(self) -> dict[str, tuple[str, ...]]:
        """Return the settings that nothing reads, by the choice that leaves them unread."""
        own = settings_of(type(self))
        found = [pair for section in self.sections().values() for pair in section.unread().items()]
        return {choice: tuple(name for name in names if name in own) for choice, names in found}

    def flat(self, *, changed_only: bool = False) -> dict[str, Any]:
        """Return the settings that are read, as plain data under their flat names.

        ``changed_only`` leaves out those at their default.
        """
        left_out = {name for names in self.unread().values() for name in names}
        found: dict[str, Any] = {}
        for section in self.sections().values():
            found |= section.model_dump(mode="json", by_alias=True, exclude_defaults=changed_only)
        return {name: value for name, value in found.items() if name not in left_out}

    def but(self, **changes: Any) -> Self:
        """Return the settings with some changed, by their flat names."""
        return type(self).model_validate({**self.flat(), **changes})

    def _departs(self, name: str) -> bool:
        return any(
            getattr(section, setting.name) != setting.info.default
            for setting in settings_of(type(self))[name]
            if type(section := getattr(self, setting.place)) is setting.section
        )


class GenerateConfig(CommandSettings):
    """``dttrl generate``: N rollouts of every question."""

    questions: Questions
    model: Model
    sampling: Sampling
    generation: Generation
    scoring: Scoring
    backend: Backend


class ScoreConfig(CommandSettings):
    """``dttrl score``: answers, classes and trajectory confidences."""

    scoring: Scoring


class TrainConfig(CommandSettings):
    """``dttrl train``: label-free test-time reinforcement learning (alg:framework)."""

    questions: Questions
    model: Model
    sampling: Sampling
    scoring: Scoring
    signal: Signal
    update: Update
    evaluation: Evaluation
    keeping: Keeping
    engine: Engine

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.sampling.temperature == 0:
            raise ValueError("temperature must be above 0 in training: greedy rollouts are all the same")
        return self

    @model_validator(mode="after")
    def _range_is_local(self) -> Self:
        if self.signal.until is not None and isinstance(self.engine, OpenRLHF):
            raise ValueError(
                f"--votes {self.signal.count} does nothing with --engine openrlhf, which samples all votes "
                "of a step at once; give one number, or use --engine local"
            )
        return self


class ScaleConfig(TrainConfig):
    """``dttrl train --engine openrlhf``."""

    engine: OpenRLHF


@cache
def settings_of(config: type[CommandSettings]) -> dict[str, list[Setting]]:
    """Return every setting of a command by its flat name; choices of one union may share a name."""
    found: dict[str, list[Setting]] = {}
    for place, field in config.model_fields.items():
        for section in _members(field):
            for name, info in section.model_fields.items():
                found.setdefault(flat_name(name, info), []).append(Setting(place, section, name, info))
    return found


def nested(config: type[CommandSettings], given: Mapping[str, Any], *, lenient: bool) -> dict[str, Any]:
    """Return the sections of flat settings; a value that is a section already stays one.

    ValueError for names that there are not, and for settings of a choice that was not made, unless they are
    at their default (then they say nothing) or ``lenient`` is set.
    """
    known = settings_of(config)
    whole = {name: value for name, value in given.items() if isinstance(value, Section)}
    flat = {name: value for name, value in given.items() if name not in whole}
    chosen = {}
    for place, field in config.model_fields.items():
        for section in _members(field):
            flat = section.adopt(flat, lenient=lenient)
        chosen[place] = _chosen(field, flat)
    found: dict[str, Any] = {place: {} for place in config.model_fields if place not in whole}
    for name, value in flat.items():
        places = known.get(name)
        if places is None:
            raise ValueError(f"there is no field {name.replace('_', '-')!r}")
        mine = next((each for each in places if chosen[each.place] in (each.section, None)), None)
        if mine is not None and mine.place not in whole:
            found[mine.place][name] = value
        elif mine is None and not lenient and not _at_default(places[0], value):
            raise ValueError(_stranger(config, places, chosen))
    return {**found, **whole}


def _members(field: FieldInfo) -> list[type[Section]]:
    annotation = field.annotation
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return [annotation] if isinstance(annotation, type) else list(get_args(annotation))


def _chosen(field: FieldInfo, flat: dict[str, Any]) -> type[Section] | None:
    """Return the member of a union that the settings name (default: the first), None where it is unknown."""
    members = _members(field)
    if field.discriminator is None:
        return members[0]
    tag = str(field.discriminator)
    tags = {member.model_fields[tag].default: member for member in members}
    value = flat.setdefault(tag, members[0].model_fields[tag].default)
    return tags.get(value) if isinstance(value, str) else None


def _at_default(setting: Setting, value: Any) -> bool:
    try:
        section = setting.section.model_validate({flat_name(setting.name, setting.info): value})
    except ValidationError:
        return False
    return bool(getattr(section, setting.name) == setting.info.default)


def _stranger(
    config: type[CommandSettings], places: list[Setting], chosen: Mapping[str, type[Section] | None]
) -> str:
    """Say whose a setting is that none of the choices made has."""
    place, _, name, info = places[0]
    tag, made = str(config.model_fields[place].discriminator), chosen[place]
    assert made is not None  # where a choice is unknown, its settings are left to pydantic
    owners = [each.section.model_fields[tag].default for each in places if each.section is not Auto]
    return (
        f"{flag(flat_name(name, info))} does nothing with {flag(tag)} {made.model_fields[tag].default}; "
        f"leave it out, or add {flag(tag)} {' or '.join(owners)}"
    )
