"""Modules whose doctests cannot be collected because a package that they import is not installed."""

from __future__ import annotations

import importlib.util

NEEDS = {
    "triton": ("dttrl/kernels",),
    "openrlhf": ("dttrl/training/openrlhf/executor.py", "dttrl/training/openrlhf/trainer.py"),
}

collect_ignore = [
    path for package, paths in NEEDS.items() if importlib.util.find_spec(package) is None for path in paths
]
