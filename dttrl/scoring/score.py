"""Scoring: rollouts -> answers, answer classes and trajectory confidence (eq:traj_conf).

A question's rollouts are scored together, because an answer class is an equivalence among them. Axis letters:
R questions, N rollouts of each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dttrl.answers.extraction import Extraction
from dttrl.answers.grading import Grader
from dttrl.answers.kinds import AUTO
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.rollouts import Rollout, table_to_rollouts
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import TableWriter
from dttrl.errors import InputError
from dttrl.method.ballots import ABSENT
from dttrl.method.confidence import MEASURED_COLUMNS, Measure, Region, trajectory_confidence
from dttrl.method.latent import LEAST_GAIN, Sums, summed
from dttrl.method.measure_choice import Candidate, Evidence, candidates, weigh
from dttrl.method.scored import Scored
from dttrl.scoring.scored_files import golds_of, sources_of
from dttrl.settings.sections import Scoring

SCORE_COLUMNS = ("answer", "answer_source", "answer_class", "confidence")
MAX_EXAMPLES = 5
"""How many classes of several spellings a summary shows."""
CHOICE_QUESTIONS = 256
"""From how many questions a measure is chosen."""
NO_ANSWER = "none"
"""Name under which rollouts without an answer are counted among the answer sources."""


@dataclass
class ScoreSummary:
    """Counts over the scored files; accuracy covers only rollouts of questions with a gold answer.

    ``merged`` counts the classes that hold several spellings, ``examples`` shows the first of them, and
    ``grader`` says how many distinct pairs of answers were decided by which rule.
    """

    questions: int = 0
    rollouts: int = 0
    classes: int = 0
    gold_questions: int = 0
    gold_rollouts: int = 0
    correct_rollouts: int = 0
    without_confidence: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    grader: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    merged: int = 0
    examples: list[tuple[str, list[str]]] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    """Where the measure was chosen: what spoke for each candidate, the best first."""

    @property
    def accuracy(self) -> float:
        """Share of right rollouts where gold exists; NaN where it does not."""
        return self.correct_rollouts / self.gold_rollouts if self.gold_rollouts else math.nan

    def add(self, scored: Scored) -> None:
        """Count scored questions."""
        self.questions += len(scored.query_id)
        self.rollouts += scored.class_RN.size
        self.classes += int(scored.n_classes_R.sum())
        self.sources.update(
            NO_ANSWER if source is None else source for source in scored.rows["answer_source"].to_pylist()
        )
        self.without_confidence += int(np.isnan(scored.confidence_RN).sum())
        for query_id, spellings in merged_spellings(scored):
            self.merged += 1
            if len(self.examples) < MAX_EXAMPLES:
                self.examples.append((query_id, spellings))
        self.gold_questions += int(scored.has_gold_R.sum())
        self.gold_rollouts += int(scored.has_gold_R.sum()) * scored.class_RN.shape[1]
        self.correct_rollouts += int(scored.correct_RN.sum())


def score_rollouts(
    groups: Sequence[Sequence[Rollout]],
    scoring: Scoring,
    grader: Grader,
    *,
    golds: Sequence[str | None] | None = None,
    sources: Sequence[str | None] | None = None,
    width: int | None = None,
) -> Scored:
    """Extract the answers of questions' rollouts, group them into classes and measure the confidences.

    ``groups`` are the rollouts of each question, samples 0 to the last that was drawn. The arrays have
    ``width`` columns (default: as many as the longest group). ``sources`` name the data sets, by which a
    grader of kind auto says how answers are found and compared.
    """
    query_id = [group[0].query_id for group in groups]
    sources = [None] * len(groups) if sources is None else sources
    golds = [None] * len(groups) if golds is None else [gold or None for gold in golds]
    asked = asked_confidences(scoring)
    found: list[Extraction] = []
    spellings, gold_class_R = [], []
    shape = len(groups), width or max(map(len, groups))
    class_RN = np.full(shape, ABSENT, dtype=np.int32)
    measured = {name: np.full(shape, np.nan) for name in asked}
    for r, (group, name, source, gold) in enumerate(zip(groups, query_id, sources, golds, strict=True)):
        own = grader.for_source(source, name)
        read = [read_rollout(rollout, scoring, asked, own) for rollout in group]
        found += [extraction for extraction, _ in read]
        answers = [extraction.answer for extraction, _ in read]
        class_RN[r, : len(group)] = class_N = own.classes(answers)
        for each, confidence_RN in measured.items():
            confidence_RN[r, : len(group)] = [confidence[each] for _, confidence in read]
        spellings.append(own.spelling(answers, class_N))
        gold_class_R.append(own.match(gold, spellings[-1]) if gold is not None else -1)
    first_R = np.cumsum([0, *map(len, spellings)], dtype=np.int32)
    number_C = np.arange(max(map(len, spellings)), dtype=np.int32)
    first = next(iter(asked))
    return Scored(
        class_RN,
        measured[first],
        groups[0][0].step,
        asked[first].measure,
        query_id,
        sources,
        golds,
        right_RC=number_C == np.array(gold_class_R)[:, None],
        word_RC=np.where(number_C < np.diff(first_R)[:, None], first_R[:-1, None] + number_C, -1),
        words=list(chain.from_iterable(spellings)),
        candidates=measured if scoring.measure == "auto" else {},
        rows=pa.table(
            [[extraction.answer for extraction in found], [extraction.source for extraction in found]],
            schema=ROLLOUTS.select(("answer", "answer_source")),
        ),
    )


def asked_confidences(scoring: Scoring) -> dict[str, Candidate]:
    """Return the confidences to measure: the one that is asked for, or all that it is to be chosen from."""
    if scoring.measure == "auto":
        return candidates(scoring.region)
    only = Candidate(scoring.measure, Region.parse(scoring.region))
    return {only.name: only}


def read_rollout(
    rollout: Rollout, scoring: Scoring, asked: Mapping[str, Candidate], grader: Grader
) -> tuple[Extraction, dict[str, float]]:
    """Return the answer of a rollout and its confidences by name; ``asked`` are those of ``scoring``."""
    extraction = grader.extract(rollout.text, last_number=scoring.last_number)
    confidence = {
        name: trajectory_confidence(
            rollout, region=each.region, measure=each.measure, answer_start=extraction.start
        )
        for name, each in asked.items()
    }
    return extraction, confidence


def merged_spellings(scored: Scored) -> Iterator[tuple[str, list[str]]]:
    """Yield question and spellings of each class that has several, the most frequent spelling first."""
    answers = scored.rows["answer"].to_pylist()
    for r, class_N in enumerate(scored.class_RN.tolist()):
        members: list[Counter[str]] = [Counter() for _ in range(scored.n_classes_R[r])]
        for class_id, answer in zip(class_N, answers[r * len(class_N) : (r + 1) * len(class_N)], strict=True):
            if class_id >= 0 and answer is not None:
                members[class_id][answer.strip()] += 1
        for counts in members:
            if len(counts) > 1:
                ranked = sorted(counts, key=lambda text: (-counts[text], len(text), text))
                yield scored.query_id[r], ranked


def score_files(
    paths: Sequence[Path],
    output: Path,
    scoring: Scoring,
    grader: Grader,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ScoreSummary:
    """Score rollout files as a stream and write them with the columns of ``SCORE_COLUMNS``.

    Earlier scores are replaced. Files without the token column of the measure keep the confidence that they
    have, and the summary says so. ``progress`` is called with the number of rollouts done.
    """
    files = RolloutFiles(paths)
    files.require("text")
    files.check_output(output, keeps_rows=True)
    summary = ScoreSummary()
    if scoring.measure == "auto":
        scoring, summary.evidence = chosen_scoring(files, scoring, grader)
        summary.notes.append(choice_note(summary.evidence))
    assert scoring.measure != "auto"
    keep_confidence = _confidence_source(files.column_names, scoring.measure, summary)
    kept = [column for column in files.schema if column.name not in SCORE_COLUMNS]
    schema = pa.schema([*kept, *ROLLOUTS.select(SCORE_COLUMNS)], metadata=ROLLOUTS.fields.metadata)
    metadata: dict[str, Any] = {
        **files.metadata,
        "region": None if keep_confidence else scoring.region,
        "answer_kind": AUTO if grader.auto else grader.kind,
        "last_number": scoring.last_number,
        "grader": grader_version(),
    }
    if not keep_confidence:
        metadata["measure"] = scoring.measure
    with TableWriter(output, schema, metadata=metadata, overwrite=overwrite) as writer:
        for table, gold, source in _questions(files):
            scored = score_rollouts([table_to_rollouts(table)], scoring, grader, golds=gold, sources=source)
            if keep_confidence and "confidence" in table.column_names:
                stored = table.column("confidence").cast(pa.float64()).to_numpy(zero_copy_only=False)
                scored = replace(scored, confidence_RN=stored[None, :])
            writer.write(_with_scores(table, scored, schema))
            summary.add(scored)
            if progress is not None:
                progress(summary.rollouts)
    summary.grader = dict(grader.counters)
    if summary.rollouts == summary.sources[NO_ANSWER] and "answer" in files.column_names:
        summary.notes.append(
            "no answer was found in any text, though the input had answers; is --kind right? "
            "(dttrl vote reads the answers that a file has)"
        )
    return summary


def _questions(files: RolloutFiles) -> Iterator[tuple[pa.Table, list[str | None], list[str | None]]]:
    """Yield the rows of each question with its gold answer and its source, as lists of one."""
    for block in files.blocks(files.column_names, rows=1):
        sources, golds = sources_of(block), golds_of(block)
        for q, (first, last) in enumerate(pairwise(block.start_Q.tolist())):
            yield block.table.slice(first, last - first), golds[q : q + 1], sources[q : q + 1]


def chosen_scoring(files: RolloutFiles, scoring: Scoring, grader: Grader) -> tuple[Scoring, list[Evidence]]:
    """Return the scoring with a measure and a region chosen from the first questions, and the evidence.

    Candidates that no rollout has token values for are left out. Raises :class:`InputError` where none is
    left.
    """
    sums: dict[str, list[Sums]] = {}
    known: set[str] = set()
    for number, (table, gold, source) in enumerate(_questions(files)):
        if number == CHOICE_QUESTIONS:
            break
        scored = score_rollouts([table_to_rollouts(table)], scoring, grader, golds=gold, sources=source)
        for name, confidence_RN in scored.candidates.items():
            sums.setdefault(name, []).append(summed(scored.class_RN, confidence_RN))
            known |= {name} if np.isfinite(confidence_RN).any() else set()
    evidence = weigh({name: Sums.joined(parts) for name, parts in sums.items() if name in known})
    if not evidence:
        raise InputError(
            f"{files.paths[0]}: no token statistics, so there is no measure to choose; leave --measure out"
        )
    best = candidates(scoring.region)[evidence[0].name]
    return scoring.model_copy(update={"measure": best.measure, "region": str(best.region)}), evidence


def choice_note(evidence: Sequence[Evidence]) -> str:
    """Say which candidate was chosen, and by which numbers."""
    best, *others = evidence
    rest = ", ".join(f"{each.name} {each.gain:+.1f}" for each in others)
    text = f"measure {best.name} chosen: gain {best.gain:+.1f} nats (others: {rest})"
    return text if best.gain >= LEAST_GAIN else f"{text}; none of them tells right from wrong"


def stored_kind(metadata: Mapping[str, Any]) -> str:
    """Return the kind of answer that a file was scored for; auto where it does not say."""
    kind = metadata.get("answer_kind")
    return kind if isinstance(kind, str) and kind else AUTO


def grader_version() -> str:
    """Return what classed the answers, for the file's metadata."""
    from importlib import metadata

    from dttrl import __version__

    try:
        algebra = f"math-verify {metadata.version('math-verify')}"
    except metadata.PackageNotFoundError:
        algebra = "no algebra"
    return f"dttrl {__version__}, {algebra}"


def _confidence_source(names: Sequence[str], measure: Measure, summary: ScoreSummary) -> bool:
    """Decide whether stored confidences are kept (True) or computed from tokens (False); note it."""
    column = MEASURED_COLUMNS[measure]
    if column in names:
        return False
    if "confidence" in names:
        summary.notes.append(f"no column {column}: the confidences stored in the file are kept")
        return True
    summary.notes.append(
        f"no column {column}: confidence stays empty, only votes without weights are possible"
    )
    return True


def _with_scores(table: pa.Table, scored: Scored, schema: pa.Schema) -> pa.Table:
    added = {
        **dict(zip(scored.rows.column_names, scored.rows.columns, strict=True)),
        "answer_class": pa.array(scored.class_RN.ravel()),
        "confidence": pa.array(scored.confidence_RN.ravel(), from_pandas=True),  # NaN becomes null
    }
    columns = [added[name] if name in added else table.column(name) for name in schema.names]
    return pa.table(columns, schema=schema)
