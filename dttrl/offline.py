"""Votes on saved rollouts: scored files -> one row a (method, step, question), as in ``VOTES``.

Files are read as a stream, so memory does not grow with them (but for ``progressive``, whose history is every
confidence). Questions with the same number of rollouts are voted together. Files that hold answers but no
classes (other people's) are classed on the way, and where they have no confidence only methods that need none
are possible. Axis letters: R questions voted at once, N rollouts of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dttrl.answers.grading import Grader
from dttrl.confidence import positive_weights
from dttrl.errors import InputError
from dttrl.history import History
from dttrl.mixture import Mixture, fit_mixture
from dttrl.schemas import VOTES
from dttrl.scored import FloatArray, Scored
from dttrl.scored_files import Classes, column_floats, read_scored
from dttrl.tables import RolloutFiles, TableWriter
from dttrl.vote_summary import MethodSummary, VoteSummary, count_votes, find_disagreements
from dttrl.voting.distrivoting import FALLBACKS
from dttrl.voting.registry import METHODS, ParsedMethod, VoteOutcome, parse_method

NO_CONFIDENCE = "no-confidence"
"""Fallback of a question none of whose answered rollouts has a confidence: the vote counts heads."""

Pools = Mapping[int | None, Mixture]
"""The mixture that ``progressive`` votes under, by step."""


class Contender(Protocol):
    """A method that stands for election among others: a strategy here, or a run's own way of labelling."""

    name: str
    needs_confidence: bool
    needs_weights: bool

    def vote(self, block: Scored, weight_RN: FloatArray) -> VoteOutcome:
        """Vote on a block; ``weight_RN`` are its confidences as vote weights."""


class Strategy:
    """A voting method of the registry; ``pools`` is what the pooled one votes under."""

    def __init__(self, name: str, method: ParsedMethod, pools: Pools | None = None) -> None:
        self.name = name
        self.needs_confidence = method.info.needs_confidence
        self.needs_weights = method.needs_weights
        self._method, self._pools = method, pools

    def vote(self, block: Scored, weight_RN: FloatArray) -> VoteOutcome:
        """Vote on a block."""
        if not self._method.info.pooled:
            return self._method.vote(block.class_RN, weight_RN)
        # The history is of confidences as they were measured.
        pool = self._pools[block.step] if self._pools is not None else None
        return self._method.vote(block.class_RN, block.confidence_RN, pool)


class Ballot:
    """Methods that vote on the same questions, with the running summary of what they elected."""

    def __init__(self, contenders: Sequence[Contender], *, keep_disagreements: bool = False) -> None:
        self._contenders = list(contenders)
        self._keep = keep_disagreements
        self.summary = VoteSummary([MethodSummary(contender.name) for contender in self._contenders])

    def vote(self, block: Scored) -> pa.Table:
        """Vote on questions that all have the same number of rollouts; returns their VOTES rows."""
        needed = any(contender.needs_weights for contender in self._contenders)
        weight_RN = vote_weights(block, needed=needed)
        answered_RN = block.class_RN >= 0
        sighted_R = (answered_RN & np.isfinite(block.confidence_RN)).any(axis=1)
        blind_R = np.asarray(answered_RN.any(axis=1) & ~sighted_R, dtype=np.bool_)
        tables, winners = [], []
        for contender, summary in zip(self._contenders, self.summary.methods, strict=True):
            outcome = contender.vote(block, weight_RN)
            fallbacks = _fallbacks(outcome, blind_R & np.bool_(contender.needs_confidence))
            table = _rows(contender.name, block, outcome, fallbacks)
            count_votes(summary, table, block)
            tables.append(table)
            winners.append(outcome.vote.winner_R)
        find_disagreements(self.summary, block, winners, keep=self._keep)
        self.summary.questions += len(block.query_id)
        self.summary.rollouts += block.class_RN.size
        return pa.concat_tables(tables) if tables else VOTES.fields.empty_table()


def vote_weights(block: Scored, *, needed: bool) -> FloatArray:
    """Return the confidences of a block as vote weights: log-scale measures through exp, others as they are.

    Raises :class:`InputError` for a negative weight where weights are ``needed``: somebody will sum them.
    """
    if block.measure in ("logprob", "entropy") or (needed and block.measure is not None):
        return positive_weights(block.confidence_RN, block.measure)
    if not needed:
        return block.confidence_RN
    lowest_R = np.min(block.confidence_RN, axis=1, where=~np.isnan(block.confidence_RN), initial=np.inf)
    if (lowest_R < 0).any():
        row = int(np.flatnonzero(lowest_R < 0)[0])
        raise InputError(
            f"question {block.query_id[row]!r}: column confidence holds {lowest_R[row]:.4g}, and a "
            "negative vote weight elects the rarest answer; store probabilities (exp of a "
            "log-probability), or vote with --method sc"
        )
    return block.confidence_RN


def strategies(
    names: Sequence[str], *, has_confidence: bool, pools: Callable[[Any], Pools] | None = None
) -> tuple[list[Contender], list[str]]:
    """Return the named voting methods (``all``: each with its defaults) and notes on those left out.

    ``pools`` gives the mixtures for a history window (None: all past steps). Raises :class:`InputError` for a
    method that needs confidences where there are none.
    """
    found: list[Contender] = []
    notes: list[str] = []
    for name in expand(names):
        method = parse_method(name)
        if method.info.needs_confidence and not has_confidence:
            if "all" not in names:
                free = ", ".join(info.name for info in METHODS.values() if not info.needs_confidence)
                raise InputError(
                    f"method {name} needs confidences and the rollouts have none: without them only "
                    f"{free} is possible (dttrl score adds confidences where token statistics were saved)"
                )
            notes.append(f"no confidences: {name} is left out")
            continue
        window = method.parameters.get("window")
        needed = pools(None if window == "all" else window) if pools and method.info.pooled else None
        found.append(Strategy(name, method, needed))
    return found, notes


def expand(names: Sequence[str]) -> list[str]:
    """Return the names with ``all`` spelt out, each once."""
    every = [name for method in names for name in (METHODS if method == "all" else (method.strip(),))]
    return list(dict.fromkeys(every))


def pool_mixtures(files: RolloutFiles, column: str, window: int | None) -> dict[int | None, Mixture]:
    """Return the mixture of each step: its confidences and its shift-corrected past (:mod:`dttrl.history`).

    Rollouts without a step are one pool.
    """
    values: dict[int | None, list[FloatArray]] = {}
    for block in files.blocks([column]):
        value_P = column_floats(block.table.column(column), column)
        for q, step in enumerate(block.step):
            part = value_P[block.start_Q[q] : block.start_Q[q + 1]]
            values.setdefault(step, []).append(part)
    history = History(window=window)
    mixtures: dict[int | None, Mixture] = {}
    for step, parts in values.items():
        if step is None:
            mixtures[None] = fit_mixture(np.concatenate(parts))
        else:
            progressive, history = history.advance(step, np.concatenate(parts))
            mixtures[step] = progressive.mixture
    return mixtures


def vote_files(
    paths: Sequence[Path],
    methods: Sequence[str],
    *,
    grader: Grader,
    output: Path | None = None,
    overwrite: bool = False,
    classes: Classes = "equivalent",
    confidence: str = "confidence",
    keep_disagreements: bool = False,
    progress: Callable[[int], None] | None = None,
) -> VoteSummary:
    """Vote on scored rollout files with each method (or ``all``), write VOTES to ``output`` and summarize."""
    files = RolloutFiles(paths)
    files.require("answer")
    if confidence != "confidence":
        files.require(confidence)
    contenders, notes = strategies(
        methods,
        has_confidence=has_confidence(files, confidence),
        pools=lambda window: pool_mixtures(files, confidence, window),
    )
    ballot = Ballot(contenders, keep_disagreements=keep_disagreements)
    ballot.summary.notes = notes
    if "answer_class" not in files.column_names and classes == "equivalent":
        ballot.summary.notes.append("no column answer_class: answers are compared and classed on the way")
    metadata = {**files.metadata, "methods": [m.method for m in ballot.summary.methods], "classes": classes}
    with open_votes(files, output, metadata, overwrite=overwrite) as sink:
        for block in read_scored(files, grader=grader, classes=classes, confidence=confidence):
            table = ballot.vote(block)
            if sink is not None:
                sink.write(table)
            if progress is not None:
                progress(ballot.summary.rollouts)
    return ballot.summary


def open_votes(
    files: RolloutFiles, output: Path | None, metadata: Mapping[str, Any], *, overwrite: bool
) -> Any:
    """Return a writer of VOTES as a context manager; one of nothing where there is no output.

    Raises InputError for an output that is one of the files voted on, or no Parquet file.
    """
    if output is None:
        return nullcontext()
    if output.suffix != ".parquet":
        raise InputError(f"{output}: votes are written as Parquet; name a file that ends in .parquet")
    files.check_output(output)
    return TableWriter(output, VOTES.fields, metadata=metadata, overwrite=overwrite)


def has_confidence(files: RolloutFiles, column: str = "confidence") -> bool:
    """Whether any rollout may have a confidence; a column of nulls is as good as none."""
    if column not in files.column_names:
        return False
    for path in files.paths:
        footer = pq.read_metadata(path)
        index = footer.schema.names.index(column)
        for number in range(footer.num_row_groups):
            chunk = footer.row_group(number).column(index)
            statistics = chunk.statistics
            if statistics is None or not statistics.has_null_count:
                return True
            if statistics.null_count < footer.row_group(number).num_rows:
                return True
    return False


def _fallbacks(outcome: VoteOutcome, blind_R: NDArray[np.bool_]) -> list[str | None]:
    indices = [0] * blind_R.size if outcome.distrivote is None else outcome.distrivote.fallback_R.tolist()
    return [
        NO_CONFIDENCE if blind else FALLBACKS[index] or None
        for blind, index in zip(blind_R.tolist(), indices, strict=True)
    ]


def _rows(name: str, block: Scored, outcome: VoteOutcome, fallbacks: Sequence[str | None]) -> pa.Table:
    vote, size = outcome.vote, len(block.query_id)
    columns: dict[str, Any] = {
        "method": pa.repeat(pa.scalar(name, pa.string()), size),
        "step": pa.repeat(pa.scalar(block.step, pa.int32()), size),
        "query_id": block.query_id,
        "answer": block.spelling(vote.winner_R),
        "answer_class": vote.winner_R,
        "gold": block.gold,
        "correct": block.correct(vote.winner_R),
        "n": np.full(size, block.class_RN.shape[1], dtype=np.int32),
        "n_valid": vote.n_valid_R,
        "n_votes": vote.n_votes_R,
        "majority_ratio": vote.majority_ratio_R,
        "label_ratio": vote.label_ratio_R,
        "margin": vote.margin_R,
        "tie": vote.tie_R,
        "diversity": block.n_classes_R,
        "fallback": list(fallbacks),
        **_filter_columns(block, outcome),
    }
    arrays = []
    for column in VOTES.fields:
        values = columns.get(column.name)
        if values is None:
            arrays.append(pa.nulls(size, column.type))
        else:
            arrays.append(values if isinstance(values, pa.Array) else pa.array(values, column.type))
    return pa.table(arrays, schema=VOTES.fields)


def _filter_columns(block: Scored, outcome: VoteOutcome) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if outcome.distrivote is not None:
        columns["n_pos"] = outcome.distrivote.n_pos_R
        columns["n_neg"] = outcome.distrivote.n_neg_R
        columns["rejected"] = block.spelling(outcome.distrivote.rejected_R)
    mixtures = outcome.mixtures
    if mixtures is None:
        return columns
    usable = ~np.asarray(mixtures.is_degenerate)
    for column in ("mean_neg", "std_neg", "mean_pos", "std_pos"):
        values = np.where(usable, getattr(mixtures, column), np.nan)
        values = np.broadcast_to(values, len(block.query_id))
        columns[column] = pa.array(values, pa.float64(), from_pandas=True)  # NaN becomes null
    return columns
