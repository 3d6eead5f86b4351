"""Which OpenRLHF is installed, and which the project was tested with."""

from __future__ import annotations

import importlib.metadata

from dttrl.sampling.backends import KNOWN

TESTED = str(KNOWN["openrlhf"][0])
"""Series of OpenRLHF that was run; later ones rename flags and fields."""


def openrlhf_version() -> str:
    """Return the installed version; where the package was copied and has no metadata, the tested series."""
    try:
        return importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        return f"{TESTED}.?"
