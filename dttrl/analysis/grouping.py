"""Runs of one comparison, grouped: same questions, same starting model, same settings, different seeds.

A group's label is the method and the settings in which it departs from most runs of its method, so that an
ablation reads ``distri-gmm tau=0.3`` beside a plain ``distri-gmm``. A vote that is not the method's own is
always named (``distri-gmm label=mob``), whatever most runs have.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dttrl.analysis.runs import expand_runs, read_config, read_records
from dttrl.data.schemas import EVALUATIONS

INCIDENTAL = frozenset({
    "seed", "run", "device", "threads", "batch_size", "checkpoint_every", "keep_tokens", "keep_rollouts",
})  # fmt: skip
"""Settings that say where and how long a run ran, not what it did: runs that differ only here are a group."""
_APART = frozenset({"method", "model", "questions", "heldout"})
"""Settings that a group has a column of its own for."""


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ in nothing but their seed, and what a reader calls them."""

    questions: str
    """The question set: the ``source`` of the evaluated questions, else the name of their file."""
    start: str
    """The model that the runs started from."""
    label: str
    settings: Mapping[str, Any]
    runs: tuple[Path, ...]
    seeds: tuple[int, ...]
    """Of the runs, in their order."""

    @property
    def title(self) -> str:
        """Label, question set and start in one line."""
        return title(self.label, self.questions, self.start)

    @property
    def columns(self) -> dict[str, str]:
        """What a table says of the group."""
        return {"questions": self.questions, "start": self.start, "method": self.label}


def title(label: str, questions: str, start: str) -> str:
    """Label, question set and start of a group in one line."""
    return f"{label}, {questions}, from {start}"


def group_folders(runs: Sequence[Path]) -> list[RunGroup]:
    """Group runs in order of first appearance; raises InputError for what is no run."""
    folders = expand_runs(runs)
    settings = [read_config(run) for run in folders]
    sets = [_question_set(run, config) for run, config in zip(folders, settings, strict=True)]
    usual = _usual(settings)
    starts = _short_names([str(config.get("model", "unknown")) for config in settings])
    members: dict[tuple[str, ...], list[int]] = {}
    for index, config in enumerate(settings):
        key = (sets[index], starts[index], _fingerprint(config))
        members.setdefault(key, []).append(index)
    groups = []
    for (questions, start, _), found in members.items():
        config = settings[found[0]]
        method = str(config["method"])
        label = " ".join([method, *_departures(config, usual.get(method, {}))])
        folder_R = tuple(folders[index] for index in found)
        seed_R = tuple(settings[index]["seed"] for index in found)
        groups.append(RunGroup(questions, start, label, config, folder_R, seed_R))
    return groups


def telling_labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each run's method with all settings in which the runs of its method differ."""
    labels = []
    for config in settings:
        peers = [other for other in settings if other["method"] == config["method"]]
        names = sorted({name for other in peers for name in other} - INCIDENTAL)
        differing = [n for n in names if any(other.get(n) != config.get(n) for other in peers)]
        if config.get("label") is not None and "label" not in differing:
            differing.append("label")
        labels.append(" ".join([str(config["method"]), *(f"{n}={config.get(n)}" for n in differing)]))
    return labels


def _question_set(run: Path, config: Mapping[str, Any]) -> str:
    evaluations = read_records(run, EVALUATIONS, columns=["source"])
    if evaluations is not None:
        sources = evaluations.column("source").unique().to_pylist()
        named = sorted(str(source) for source in sources if source is not None)
        if named:
            return "+".join(named)
    return Path(str(config.get("questions", "unknown"))).stem


def _fingerprint(config: Mapping[str, Any]) -> str:
    """What makes two runs the same but for their seed; question files are told apart by their set's name."""
    kept = {
        name: value
        for name, value in config.items()
        if name not in INCIDENTAL and name not in ("model", "questions", "heldout")
    }
    return json.dumps(kept, sort_keys=True, default=str)


def _usual(settings: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the value of each setting that more runs of a method have than any other value.

    Among equally frequent values the one that more runs of all methods have.
    """
    result: dict[str, dict[str, str]] = {}
    for method in {str(config["method"]) for config in settings}:
        peers = [config for config in settings if str(config["method"]) == method]
        for name in {name for config in peers for name in config} - INCIDENTAL - _APART:
            everywhere = Counter(str(config.get(name)) for config in settings)
            ranked = sorted(
                (count, everywhere[value], value)
                for value, count in Counter(str(config.get(name)) for config in peers).items()
            )
            if len(ranked) == 1 or ranked[-1][:2] > ranked[-2][:2]:
                result.setdefault(method, {})[name] = ranked[-1][2]
        result.setdefault(method, {})["label"] = "None"
    return result


def _departures(config: Mapping[str, Any], usual: Mapping[str, str]) -> list[str]:
    names = sorted(set(config) - INCIDENTAL - _APART)
    return [f"{name}={config[name]}" for name in names if str(config[name]) != usual.get(name)]


def _short_names(names: Sequence[str]) -> list[str]:
    """Return the fewest last parts of each path that tell the distinct ones apart.

    >>> _short_names(["/a/x/model", "/a/y/model", "/a/x/model"])
    ['x/model', 'y/model', 'x/model']
    """
    parts = [Path(name).parts or (name,) for name in names]
    longest = max((len(part) for part in parts), default=1)
    for length in range(1, longest + 1):
        short = ["/".join(part[-length:]) for part in parts]
        if len(set(short)) == len(set(names)):
            return short
    return list(names)
