"""What the confidences of rollouts are worth, without gold answers: which measure to use, and how to vote.

Every measure and region that the rollouts can give is judged by the latent-answer model
(:func:`dttrl.method.measure_choice.weigh`) and by how well it separates the rollouts that give the elected
answer, or the gold one, from the others of their question. The strategies then vote with the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dttrl.analysis.accuracy import known_mean
from dttrl.analysis.budget import PAPER_METHODS
from dttrl.analysis.confidence_quality import TOKEN_VALUES, measured_confidences, within
from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutFiles
from dttrl.method.ballots import FloatArray
from dttrl.method.confidence import MEASURED_COLUMNS, MEASURES, Measure
from dttrl.method.latent import LEAST_GAIN, Sums, summed
from dttrl.method.measure_choice import Candidate, candidates, weigh
from dttrl.method.scored import NO_ROWS, Scored
from dttrl.method.voting.majority import majority
from dttrl.method.voting.registry import METHODS, parse_method
from dttrl.scoring.scored_files import read_scored
from dttrl.scoring.summary import MethodSummary, VoteSummary
from dttrl.scoring.vote import elect, strategy

STRATEGIES = tuple(name for name in METHODS if name in (*PAPER_METHODS, "latent"))
"""What is held against the plain vote, which is the first of them."""
STORED = "confidence"
"""Name of the confidences of a file that does not say what they measure."""
BLOCK_ROWS = 2**11
_WORDS = {"topk": "top-k confidence"}
_WHERE = {"all": "the whole completion", "last-step": "the last step"}


@dataclass(frozen=True)
class MeasureFinding:
    """One measure over a region: what it says without gold answers, and with them."""

    name: str
    """As ``perplexity:all``."""
    contrasts: int
    """Questions with a confidence in two answer classes and more: all that can tell anything."""
    gain: float
    """Nats that it adds to the likelihood of the latent-answer model."""
    separation: float
    """How much surer right rollouts are, in standard deviations of a rollout; 0 where it says nothing."""
    auroc_vote: float
    """AUROC within questions of giving the most frequent answer."""
    auroc_gold: float
    """AUROC within questions of being right; NaN without gold answers."""

    @property
    def words(self) -> str:
        """How a sentence names it."""
        measure, _, region = self.name.partition(":")
        if not region:
            return "the stored confidence"
        return f"{_WORDS.get(measure, measure)} over {_WHERE.get(region, f'the region {region}')}"

    @property
    def settings(self) -> dict[str, str]:
        """The settings of ``dttrl score`` and ``dttrl train`` that measure it; {} where nobody says."""
        measure, _, region = self.name.partition(":")
        return {"measure": measure, "region": region} if region else {}


@dataclass(frozen=True)
class Advice:
    """What rollouts say of their measures (the best first) and of the strategies, under the best measure."""

    measures: Sequence[MeasureFinding]
    votes: VoteSummary
    notes: Sequence[str] = field(default_factory=list)

    @property
    def chosen(self) -> MeasureFinding | None:
        """The best measure, where it tells right from wrong."""
        return next((each for each in self.measures if each.gain >= LEAST_GAIN), None)

    def changed(self, method: MethodSummary) -> int:
        """Votes that a method decides otherwise than the plain vote."""
        return self.votes.disagreements[self.votes.methods[0].method, method.method]

    @property
    def sentence(self) -> str:
        """What it all says."""
        plain, latent = self.votes.methods[0], self.votes.methods[-1]
        expected = _percent(plain.expected_accuracy)
        if not self.measures:
            return f"There is no confidence, and votes are counted; the plain vote expects {expected} right."
        if self.chosen is None:
            best = self.measures[0]
            return (
                f"No measure tells right from wrong (the best, {best.words}, gains {best.gain:+.1f} nats, "
                f"and {LEAST_GAIN:.0f} are needed): keep the plain vote, which expects {expected} right."
            )
        words = self.chosen.words
        return (
            f"{words[0].upper()}{words[1:]} tells right from wrong (gain {self.chosen.gain:.0f} nats): the "
            f"latent vote changes {self.changed(latent)} of {plain.questions} votes and expects "
            f"{_percent(latent.expected_accuracy)} right, the plain vote {expected}."
        )


def advise(files: RolloutFiles, *, grader: Grader, progress: Callable[[int], None] | None = None) -> Advice:
    """Judge the measures and the strategies on rollouts with answers; steps are pooled for the measures."""
    files.require("answer")
    blocks: list[Scored] = []
    done = 0
    for block in _measured(files, grader):
        blocks.append(block)
        done += block.class_RN.size
        if progress is not None:
            progress(done)
    findings = [*_findings(blocks)]
    best = findings[0].name if findings else ""
    measure = best.partition(":")[0]
    voted = [
        replace(
            block,
            confidence_RN=block.candidates.get(best, block.confidence_RN),
            measure=measure if measure in MEASURES else None,
            candidates={},
        )
        for block in blocks
    ]
    names, notes = _possible(voted, known=bool(findings))
    votes = elect(
        files, [strategy(name, parse_method(name), lambda: voted) for name in names], lambda: voted,
        output=None, overwrite=False, keep_disagreements=False, progress=None,
    )  # fmt: skip
    return Advice(findings, votes, notes)


def _measured(files: RolloutFiles, grader: Grader) -> Iterator[Scored]:
    """Yield the questions with the confidences that their tokens give; else with those that are stored."""
    stored = _stored(files.metadata)
    region = str(stored.region) if stored is not None else "last-step"
    tried: Mapping[str, Candidate] = {}
    if "text" in files.column_names:
        tried = {
            name: candidate
            for name, candidate in candidates(region).items()
            if MEASURED_COLUMNS[candidate.measure] in files.column_names
        }
    columns = TOKEN_VALUES if tried else ()
    for block in read_scored(files, grader=grader, columns=columns, rows=BLOCK_ROWS):
        found: dict[str, FloatArray] = {}
        if tried:
            values = measured_confidences(block.rows, block.class_RN.shape, tried.values())
            found = dict(zip(tried, values, strict=True))
        found.setdefault(STORED if stored is None else stored.name, block.confidence_RN)
        yield replace(block, candidates=found, rows=NO_ROWS)


def _stored(metadata: Mapping[str, Any]) -> Candidate | None:
    """Return what the confidences of a file measure, where it says."""
    measure, region = metadata.get("measure"), metadata.get("region")
    if measure not in MEASURES or not isinstance(region, str):
        return None
    known: Measure = measure
    return next(each for each in candidates(region, (known,)).values() if str(each.region) == region)


def _findings(blocks: Sequence[Scored]) -> Iterator[MeasureFinding]:
    """Yield what is found of every confidence that any rollout has, the best first."""
    names = [
        name
        for name in blocks[0].candidates
        if any(np.isfinite(block.candidates[name]).any() for block in blocks)
    ]
    sums = {
        name: Sums.joined([summed(block.class_RN, block.candidates[name]) for block in blocks])
        for name in names
    }
    for evidence in weigh(sums):
        name = evidence.name
        voted, gold = [], []
        for block in blocks:
            value_RN = block.candidates[name]
            elected_R = majority(block.class_RN, value_RN).winner_R
            voted += within(value_RN, (block.class_RN == elected_R[:, None]) & (block.class_RN >= 0))
            gold += within(value_RN[block.has_gold_R], block.correct_RN[block.has_gold_R])
        contrasts = int(((sums[name].known > 0).sum(axis=-1) > 1).sum())
        yield MeasureFinding(
            name, contrasts, evidence.gain, evidence.separation, known_mean(voted), known_mean(gold)
        )


def _percent(share: float) -> str:
    """Return a share in words that promise no certainty.

    >>> _percent(0.953), _percent(0.998)
    ('95 %', 'over 99 %')
    """
    return "over 99 %" if share >= 0.995 else f"{100 * share:.0f} %"


def _possible(blocks: Sequence[Scored], *, known: bool) -> tuple[list[str], list[str]]:
    """Return the strategies that the confidences allow, and a note where they do not allow all."""
    if not known:
        return [name for name in STRATEGIES if not METHODS[name].needs_confidence], []
    negative = any(
        block.measure not in ("logprob", "entropy") and np.nanmin(block.confidence_RN, initial=0.0) < 0
        for block in blocks
    )
    left_out = [name for name in STRATEGIES if negative and parse_method(name).needs_weights]
    notes = [f"negative confidences cannot weigh votes: without {', '.join(left_out)}"] if left_out else []
    return [name for name in STRATEGIES if name not in left_out], notes
