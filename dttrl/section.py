"""What every group of settings is: frozen, checked, and the object that the code takes.

A setting is written once, as a field of a :class:`Section`: its description is the help text of its flag, its
default the default of flag and file, and the section's panel the group in which ``--help`` shows it.
:mod:`dttrl.settings` joins sections to the settings of a command.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """A group of settings. A field with an alias is known to flags and files by that."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), populate_by_name=True
    )
    panel: ClassVar[str]

    def unread(self) -> Mapping[str, Collection[str]]:
        """Return the settings, of any section, that nothing reads under a choice of this one."""
        return {}

    @classmethod
    def adopt(cls, flat: Mapping[str, Any], *, lenient: bool) -> dict[str, Any]:
        """Return ``flat`` with settings of older releases under today's names.

        ValueError where one cannot be carried over; ``lenient`` drops it instead.
        """
        return dict(flat)


def in_panel(name: str) -> dict[str, Any]:
    """Return what shows a field in another panel of ``--help`` than its section's."""
    return {"panel": name}


def flat_name(name: str, info: FieldInfo) -> str:
    """Return what flags and files call a field."""
    return info.alias or name


def flag(name: str) -> str:
    """Return the option of a setting: ``learning_rate`` is ``--learning-rate``."""
    return "--" + name.replace("_", "-")
