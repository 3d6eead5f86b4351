"""Which measure and region of confidence tell right from wrong, chosen without gold answers.

Every candidate is judged by how much it raises the likelihood of the latent-answer model
(:mod:`dttrl.method.latent`) over one in which the right class is no surer than the others. The gain is in
nats, whatever the unit of the candidate, so that candidates can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dttrl.method.ballots import FloatArray
from dttrl.method.confidence import Measure, Region
from dttrl.method.latent import LEAST_GAIN, Sums, fit_latents, summed
from dttrl.method.past_sums import PastSums
from dttrl.method.scored import Scored
from dttrl.method.voting.registry import Memory, parse_method

CANDIDATE_MEASURES: tuple[Measure, ...] = ("perplexity", "topk", "entropy", "self-certainty")
"""The measures that are tried; logprob orders rollouts as perplexity does."""
CANDIDATE_REGIONS = ("last-step", "all")
_PAST, _MEMORY, _CHOSEN = "past", "memory", "chosen"


class Candidate(NamedTuple):
    """A measure over a region, written ``perplexity:all``."""

    measure: Measure
    region: Region

    @property
    def name(self) -> str:
        """How it is written."""
        return f"{self.measure}:{self.region}"


class Evidence(NamedTuple):
    """What speaks for a candidate."""

    name: str
    gain: float
    """Nats; below 0 where it says less than the prior of a difference costs."""
    separation: float
    """How much surer right rollouts are, in standard deviations of a rollout; 0 where it says nothing."""


def candidates(region: str, measures: Sequence[Measure] = CANDIDATE_MEASURES) -> dict[str, Candidate]:
    """Return the candidates by name: every measure over the usual regions and ``region``."""
    regions = dict.fromkeys((*CANDIDATE_REGIONS, str(Region.parse(region))))
    found = [Candidate(m, Region.parse(r)) for m in measures for r in regions]
    return {candidate.name: candidate for candidate in found}


def weigh(sums: Mapping[str, Sums]) -> list[Evidence]:
    """Return what speaks for each candidate, the best first; equals in the order given.

    ``sums`` are those of the same questions under each candidate.
    """
    if not sums:
        return []
    stacked = Sums(*(np.stack(parts) for parts in zip(*sums.values(), strict=True)))
    fitted = fit_latents(stacked)
    found = [
        Evidence(name, float(gain), float(separation))
        for name, gain, separation in zip(sums, fitted.gain, fitted.separation, strict=True)
    ]
    return sorted(found, key=lambda each: -each.gain)


@dataclass(frozen=True, slots=True)
class MeasuredPast:
    """The sums of past steps under every candidate, beside what the method itself remembers."""

    memory: Memory
    past: Mapping[str, PastSums] = field(default_factory=dict)
    chosen: str = ""

    @staticmethod
    def of(past: Past) -> MeasuredPast:
        """Return a past as one of every candidate; one that is none yet remembers nothing of them."""
        return past if isinstance(past, MeasuredPast) else MeasuredPast(past)

    def settle(self, batch: Scored) -> tuple[Scored, list[Evidence], MeasuredPast]:
        """Choose the confidence of a step from its candidates, given the steps before.

        The evidence of the chosen one comes first. Another candidate is taken only where it gains
        :data:`LEAST_GAIN` more than the last one. A history of confidences in the unit of the last one is
        then forgotten; the latent-answer vote has that of each.
        """
        empty = self._no_sums()
        before = {name: self.past.get(name, empty) for name in batch.candidates}
        pools, past = {}, {}
        for name, confidence_RN in batch.candidates.items():
            now = summed(batch.class_RN, confidence_RN)
            past[name] = before[name].remembering(batch.step or 0, now)
            pools[name] = past[name].pool
        evidence = weigh(pools)
        chosen = evidence[0]
        last = next((each for each in evidence if each.name == self.chosen), None)
        if last is not None and chosen.gain < last.gain + LEAST_GAIN:
            chosen = last
        memory, same = self.memory, chosen.name == self.chosen
        if isinstance(memory, PastSums):
            memory = replace(before[chosen.name], last=memory.last if same else None)
        elif self.chosen and not same:
            memory = replace(memory, steps=(), centred_mixture=None)
        measure: Measure = chosen.name.partition(":")[0]  # type: ignore[assignment]
        batch = replace(batch, confidence_RN=batch.candidates[chosen.name], measure=measure)
        evidence.sort(key=lambda each: each.name != chosen.name)
        return batch, evidence, MeasuredPast(memory, past, chosen.name)

    def to_arrays(self) -> dict[str, FloatArray]:
        """Return the state as plain float64 arrays, for a checkpoint."""
        names = list(self.past)
        found = {f"{_MEMORY}/{key}": value for key, value in self.memory.to_arrays().items()}
        found[_CHOSEN] = np.array([names.index(self.chosen)] if self.chosen else [], dtype=np.float64)
        for name, past in self.past.items():
            found |= {f"{_PAST}/{name}/{key}": value for key, value in past.to_arrays().items()}
        return found

    @staticmethod
    def is_in(arrays: Mapping[str, FloatArray]) -> bool:
        """Whether arrays are those of :meth:`to_arrays`."""
        return _CHOSEN in arrays

    def restored(self, arrays: Mapping[str, FloatArray]) -> MeasuredPast:
        """Return this with the past that :meth:`to_arrays` described."""
        by_name: dict[str, dict[str, FloatArray]] = {}
        memory = {}
        for key, value in arrays.items():
            kind, _, rest = key.partition("/")
            if kind == _MEMORY:
                memory[rest] = value
            elif kind == _PAST:
                name, _, part = rest.rpartition("/")
                by_name.setdefault(name, {})[part] = value
        empty = self._no_sums()
        past = {name: empty.restored(parts) for name, parts in by_name.items()}
        chosen = [list(past)[int(index)] for index in arrays[_CHOSEN]]
        return MeasuredPast(self.memory.restored(memory), past, chosen[0] if chosen else "")

    def _no_sums(self) -> PastSums:
        """Return an empty memory of sums: as the method's own, where that is one."""
        own = self.memory if isinstance(self.memory, PastSums) else parse_method("latent").memory()
        assert isinstance(own, PastSums)
        return replace(own, steps=(), last=None)


Past = Memory | MeasuredPast
"""What a run remembers of its steps."""
