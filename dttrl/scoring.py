"""Scoring: rollouts -> answers, answer classes and trajectory confidence (eq:traj_conf).

A question's rollouts are scored together, because an answer class is an equivalence among them. Axis letter:
G rollouts of a question. ``class_G`` is -1 where a rollout has no answer, ``confidence_G`` NaN where a
confidence cannot be computed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dttrl.answers.grading import Grader
from dttrl.answers.kinds import AUTO
from dttrl.confidence import LAST_STEP, MEASURED_COLUMNS, Measure, Region, trajectory_confidence
from dttrl.errors import InputError
from dttrl.rollouts import Rollout, table_to_rollouts
from dttrl.schemas import ROLLOUTS
from dttrl.tables import RolloutFiles, TableWriter

SCORE_COLUMNS = ("answer", "answer_source", "answer_class", "confidence")
SCORED_COLUMNS = ("gold", "source", *SCORE_COLUMNS)
"""What :func:`read_scored` reads of a scored file, as far as it is there."""
MAX_EXAMPLES = 5
"""How many classes of several spellings a summary shows."""
NO_ANSWER = "none"
"""Name under which rollouts without an answer are counted among the answer sources."""


@dataclass(frozen=True)
class ScoredQuestion:
    """What scoring says of one question's G rollouts; ``spellings[c]`` is how class c is written.

    ``gold_class`` is None without a gold answer, -1 when no rollout has it, else its class.
    """

    query_id: str
    answers: list[str | None]
    sources: list[str | None]
    class_G: NDArray[np.int32]
    confidence_G: NDArray[np.float64]
    spellings: list[str]
    gold_class: int | None
    gold: str | None = None

    @property
    def n_correct(self) -> int:
        """Rollouts whose answer equals gold; 0 without gold."""
        known = self.gold_class is not None and self.gold_class >= 0
        return int((self.class_G == self.gold_class).sum()) if known else 0


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

    @property
    def accuracy(self) -> float:
        """Share of right rollouts where gold exists; NaN where it does not."""
        return self.correct_rollouts / self.gold_rollouts if self.gold_rollouts else math.nan

    def add(self, scored: ScoredQuestion) -> None:
        """Count one question."""
        size = len(scored.answers)
        self.questions += 1
        self.rollouts += size
        self.classes += len(scored.spellings)
        self.sources.update(NO_ANSWER if source is None else source for source in scored.sources)
        self.without_confidence += int(np.isnan(scored.confidence_G).sum())
        for spellings in merged_spellings(scored):
            self.merged += 1
            if len(self.examples) < MAX_EXAMPLES:
                self.examples.append((scored.query_id, spellings))
        if scored.gold_class is not None:
            self.gold_questions += 1
            self.gold_rollouts += size
            self.correct_rollouts += scored.n_correct


def score_question(
    rollouts: Sequence[Rollout],
    *,
    gold: str | None,
    grader: Grader,
    region: Region = LAST_STEP,
    measure: Measure = "topk",
    last_number: bool = False,
) -> ScoredQuestion:
    """Extract the answers of one question's rollouts, group them into classes and measure the confidences.

    The grader is that of the question (:meth:`Grader.for_source`): it says how answers are found, too.
    """
    found = [grader.extract(rollout.text, last_number=last_number) for rollout in rollouts]
    confidence_G = np.asarray(
        [
            trajectory_confidence(rollout, region=region, measure=measure, answer_start=extraction.start)
            for rollout, extraction in zip(rollouts, found, strict=True)
        ],
        dtype=np.float64,
    )
    return classify(
        rollouts[0].query_id if rollouts else "",
        answers=[extraction.answer for extraction in found],
        sources=[extraction.source for extraction in found],
        confidence_G=confidence_G,
        gold=gold,
        grader=grader,
    )


def classify(
    query_id: str,
    *,
    answers: list[str | None],
    sources: list[str | None],
    confidence_G: NDArray[np.float64],
    gold: str | None,
    grader: Grader,
    class_G: NDArray[np.int32] | None = None,
) -> ScoredQuestion:
    """Complete a question from its answers; ``class_G`` is computed unless the file has it already."""
    if class_G is None:
        class_G = grader.classes(answers)
    spellings = grader.spelling(answers, class_G)
    gold_class = grader.match(gold, spellings) if gold else None
    return ScoredQuestion(query_id, answers, sources, class_G, confidence_G, spellings, gold_class, gold)


def merged_spellings(scored: ScoredQuestion) -> list[list[str]]:
    """Return the spellings of each class that has several, the most frequent first."""
    members: list[Counter[str]] = [Counter() for _ in scored.spellings]
    for answer, class_id in zip(scored.answers, scored.class_G.tolist(), strict=True):
        if class_id >= 0 and answer is not None:
            members[class_id][answer.strip()] += 1
    return [
        sorted(counts, key=lambda spelling: (-counts[spelling], len(spelling), spelling))
        for counts in members
        if len(counts) > 1
    ]


def read_scored(table: pa.Table, *, query_id: str, grader: Grader) -> ScoredQuestion:
    """Return the scores that a question's rows already hold, classing the answers where no class is stored.

    Needs the column ``answer``; ``confidence`` may be absent (all NaN), as in other people's files.
    """
    names = table.column_names
    size = table.num_rows
    grader = grader.for_source(source_of(table), query_id)
    answers = table.column("answer").to_pylist()
    class_G = None
    if "answer_class" in names and table.column("answer_class").null_count == 0:
        class_G = table.column("answer_class").to_numpy().astype(np.int32)
        class_G = _checked_classes(class_G, answers, query_id)
    confidence_G = np.full(size, np.nan)
    if "confidence" in names:
        confidence_G = table.column("confidence").cast(pa.float64()).to_numpy(zero_copy_only=False).copy()
    sources = table.column("answer_source").to_pylist() if "answer_source" in names else [None] * size
    return classify(
        query_id,
        answers=answers,
        sources=sources,
        confidence_G=confidence_G,
        gold=gold_of(table, query_id),
        grader=grader,
        class_G=class_G,
    )


def source_of(table: pa.Table) -> str | None:
    """Return the name of the data set of a question's rows, where they say it."""
    if "source" not in table.column_names or not table.num_rows:
        return None
    source = table.column("source")[0].as_py()
    return source if isinstance(source, str) else None


def gold_of(table: pa.Table, query_id: str) -> str | None:
    """Return the gold answer of a question's rows; raises when they disagree."""
    if "gold" not in table.column_names:
        return None
    values = table.column("gold").unique().to_pylist()
    if len(values) > 1:
        raise InputError(
            f"question {query_id!r}: its rows have {len(values)} different gold answers; "
            "column gold must be the same on every row of a question"
        )
    return values[0] if values and values[0] else None


def score_files(
    paths: Sequence[Path],
    output: Path,
    *,
    grader: Grader,
    region: Region = LAST_STEP,
    measure: Measure = "topk",
    last_number: bool = False,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ScoreSummary:
    """Score rollout files as a stream and write them with the columns of ``SCORE_COLUMNS``.

    Earlier scores are replaced. Files without the token column of ``measure`` keep the confidence that they
    have, and the summary says so. ``progress`` is called with the number of rollouts done.
    """
    files = RolloutFiles(paths)
    files.require("text")
    files.check_output(output, keeps_rows=True)
    summary = ScoreSummary()
    keep_confidence = _confidence_source(files.column_names, measure, summary)
    kept = [column for column in files.schema if column.name not in SCORE_COLUMNS]
    schema = pa.schema([*kept, *ROLLOUTS.select(SCORE_COLUMNS)], metadata=ROLLOUTS.fields.metadata)
    metadata: dict[str, Any] = {
        **files.metadata,
        "region": None if keep_confidence else str(region),
        "answer_kind": AUTO if grader.auto else grader.kind,
        "last_number": last_number,
        "grader": grader_version(),
    }
    if not keep_confidence:
        metadata["measure"] = measure
    with TableWriter(output, schema, metadata=metadata, overwrite=overwrite) as writer:
        for group in files.groups():
            scored = score_question(
                table_to_rollouts(group.table),
                gold=gold_of(group.table, group.query_id),
                grader=grader.for_source(source_of(group.table), group.query_id),
                region=region,
                measure=measure,
                last_number=last_number,
            )
            if keep_confidence and "confidence" in group.table.column_names:
                stored = group.table.column("confidence").cast(pa.float64()).to_numpy(zero_copy_only=False)
                scored.confidence_G[:] = stored
            writer.write(_with_scores(group.table, scored, schema))
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


def _with_scores(table: pa.Table, scored: ScoredQuestion, schema: pa.Schema) -> pa.Table:
    added = {
        "answer": scored.answers,
        "answer_source": scored.sources,
        "answer_class": scored.class_G,
        "confidence": pa.array(scored.confidence_G, from_pandas=True),  # NaN becomes null
    }
    columns = [added[name] if name in added else table.column(name) for name in schema.names]
    arrays = [
        column if isinstance(column, (pa.Array, pa.ChunkedArray)) else pa.array(column, field_.type)
        for column, field_ in zip(columns, schema, strict=True)
    ]
    return pa.table(arrays, schema=schema)


def _checked_classes(
    class_G: NDArray[np.int32], answers: Sequence[str | None], query_id: str
) -> NDArray[np.int32]:
    """Return stored classes made dense from 0; raises where they contradict the answers."""
    for index, (answer, number) in enumerate(zip(answers, class_G.tolist(), strict=True)):
        if (number < 0) != (not answer):
            raise InputError(
                f"question {query_id!r}, rollout {index}: answer_class is {number}, but the answer is "
                f"{answer!r}; score the file again with dttrl score"
            )
    _, dense_G = np.unique(class_G[class_G >= 0], return_inverse=True)
    result_G = np.full(class_G.shape, -1, dtype=np.int32)
    result_G[class_G >= 0] = dense_G
    return result_G
