"""Votes on saved rollouts: scored files -> one row a (method, step, question), as in ``VOTES``.

Files are read as a stream, so memory grows by a few sums a question (and, for ``progressive``, by every
confidence). Questions with the same number of rollouts are voted together. Files that hold answers but no
classes (other people's) are classed on the way, and where they have no confidence only methods that need none
are possible. Whatever a method elects has a probability to be right, by one fit of the latent-answer model
to all the questions. Axis letters: R questions voted at once, N rollouts of each, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.schemas import VOTES
from dttrl.data.tables import TableWriter
from dttrl.errors import InputError
from dttrl.method.ballots import FloatArray
from dttrl.method.confidence import positive_weights
from dttrl.method.latent import Sums, posterior, summed
from dttrl.method.past_sums import PastSums
from dttrl.method.scored import Scored
from dttrl.method.voting.distrivoting import FALLBACKS, DistriVote
from dttrl.method.voting.election import Vote
from dttrl.method.voting.latent_vote import elected_probability
from dttrl.method.voting.registry import METHODS, Memory, ParsedMethod, Pool, VoteOutcome, parse_method
from dttrl.scoring.scored_files import Classes, read_scored
from dttrl.scoring.summary import MethodSummary, VoteSummary, count_votes, find_disagreements

DEFAULT_METHODS = ("sc", "latent", "distrivoting")
"""What votes where no method is named, as far as the rollouts have what it needs."""
NO_CONFIDENCE = "no-confidence"
"""Fallback of a question none of whose answered rollouts has a confidence: the vote counts heads."""

Pools = Mapping[int | None, Pool]
"""What a pooled method votes under, by step."""


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
        self.pools = pools
        self._method = method

    def vote(self, block: Scored, weight_RN: FloatArray) -> VoteOutcome:
        """Vote on a block."""
        if not self._method.info.pooled:
            return self._method.vote(block.class_RN, weight_RN)
        # The history is of confidences as they were measured.
        pool = self.pools[block.step] if self.pools is not None else None
        if not self.needs_weights:  # ties as in training: by the confidences themselves
            weight_RN = block.confidence_RN
        return self._method.vote(block.class_RN, weight_RN, pool, block.confidence_RN)


def elect(
    files: RolloutFiles,
    contenders: Sequence[Contender],
    blocks: Callable[[], Iterable[Scored]],
    *,
    output: Path | None,
    overwrite: bool,
    keep_disagreements: bool,
    progress: Callable[[int], None] | None,
    **metadata: Any,
) -> VoteSummary:
    """Let the contenders vote on every block of the files, write VOTES to ``output`` and summarize.

    ``blocks`` reads the files anew. ``metadata`` joins that of the files. Raises :class:`InputError` for an
    output that is one of the files voted on, or no Parquet file.
    """
    summary = VoteSummary([MethodSummary(contender.name) for contender in contenders])
    metadata = {**files.metadata, "methods": [method.method for method in summary.methods], **metadata}
    needed = any(contender.needs_weights for contender in contenders)
    with _open_votes(files, output, metadata, overwrite=overwrite) as sink:
        latents = _latents(contenders, blocks)
        for block in blocks():
            weight_RN = vote_weights(block, needed=needed)
            right_RC = posterior(summed(block.class_RN, block.confidence_RN), latents[block.step])
            winners = []
            for contender, counts in zip(contenders, summary.methods, strict=True):
                outcome = contender.vote(block, weight_RN)
                table = _rows(contender, block, outcome, right_RC)
                count_votes(counts, table, block)
                if sink is not None:
                    sink.write(table)
                winners.append(outcome.vote.winner_R)
            find_disagreements(summary, block, winners, keep=keep_disagreements)
            summary.questions += len(block.query_id)
            summary.rollouts += int(block.n_drawn_R.sum())
            if progress is not None:
                progress(summary.rollouts)
    return summary


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
    names: Sequence[str],
    files: RolloutFiles,
    blocks: Callable[[], Iterable[Scored]],
    confidence: str = "confidence",
) -> tuple[list[Contender], list[str]]:
    """Return the named voting methods (``all``: each with its defaults) and notes on those left out.

    ``blocks`` reads the files anew; pooled methods see all of them before the first vote.

    Raises :class:`InputError` for a method that needs confidences where ``files`` have none in the column.
    """
    confident = has_confidence(files, confidence)
    found: list[Contender] = []
    notes: list[str] = []
    for name in expand(names):
        method = parse_method(name)
        if method.info.needs_confidence and not confident:
            if "all" not in names:
                free = ", ".join(info.name for info in METHODS.values() if not info.needs_confidence)
                raise InputError(
                    f"method {name} needs confidences and the rollouts have none; possible without them: "
                    f"{free} (dttrl score adds confidences where token statistics were saved)"
                )
            notes.append(f"no confidences: {name} is left out")
            continue
        found.append(strategy(name, method, blocks))
    return found, notes


def strategy(name: str, method: ParsedMethod, blocks: Callable[[], Iterable[Scored]]) -> Strategy:
    """Return a voting method that may stand for election; a pooled one is fitted to the blocks."""
    memory = method.memory()
    return Strategy(name, method, None if memory is None else pools_of(blocks(), memory))


def expand(names: Sequence[str]) -> list[str]:
    """Return the names with ``all`` spelt out, each once."""
    every = [name for method in names for name in (METHODS if method == "all" else (method.strip(),))]
    return list(dict.fromkeys(every))


def pools_of(blocks: Iterable[Scored], memory: Memory) -> dict[int | None, Pool]:
    """Return what each step votes under: the fit to its questions and to the steps before it.

    Rollouts without a step are one pool.
    """
    if isinstance(memory, PastSums):
        return latents_of(blocks, memory)
    found: dict[int | None, list[FloatArray]] = {}
    for block in blocks:
        found.setdefault(block.step, []).append(block.confidence_RN.ravel())
    pools: dict[int | None, Pool] = {}
    for step, parts in found.items():
        fitted, following = memory.advance(step or 0, np.concatenate(parts))
        memory = memory if step is None else following
        pools[step] = fitted.mixture
    return pools


def latents_of(blocks: Iterable[Scored], memory: PastSums) -> dict[int | None, Pool]:
    """Return the latent-answer model of each step: fitted to its questions and to those of steps before."""
    found: dict[int | None, list[Sums]] = {}
    for block in blocks:
        found.setdefault(block.step, []).append(summed(block.class_RN, block.confidence_RN))
    latents: dict[int | None, Pool] = {}
    for step in sorted(found, key=lambda step: -1 if step is None else step):
        latents[step], following = memory.fitted(step or 0, Sums.joined(found[step]))
        memory = memory if step is None else following
    return latents


def _latents(
    contenders: Sequence[Contender], blocks: Callable[[], Iterable[Scored]]
) -> Mapping[int | None, Any]:
    """Return the models that say how probably an answer is right: those of ``latent``, where it stands."""
    for contender in contenders:
        if isinstance(contender, Strategy) and contender.name == "latent" and contender.pools is not None:
            return contender.pools
    memory = parse_method("latent").memory()
    assert memory is not None
    return pools_of(blocks(), memory)


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
    """Vote on scored rollout files with each method (or ``all``), write VOTES to ``output`` and summarize.

    No methods: :data:`DEFAULT_METHODS`, those of them that are possible.
    """
    files = RolloutFiles(paths)
    files.require("answer")
    if confidence != "confidence":
        files.require(confidence)
    read = partial(read_scored, files, grader=grader, classes=classes, confidence=confidence)
    notes = []
    if not methods:
        methods = DEFAULT_METHODS
        if not has_confidence(files, confidence):
            methods = [name for name in methods if not METHODS[name].needs_confidence]
            notes.append(f"no confidences, only methods without weights are possible: {', '.join(methods)}")
    contenders, left_out = strategies(methods, files, read, confidence)
    notes += left_out
    if "answer_class" not in files.column_names and classes == "equivalent":
        notes.append("no column answer_class: answers are compared and classed on the way")
    summary = elect(
        files, contenders, read, output=output, overwrite=overwrite, keep_disagreements=keep_disagreements,
        progress=progress, classes=classes,
    )  # fmt: skip
    summary.notes = notes
    return summary


def _open_votes(
    files: RolloutFiles, output: Path | None, metadata: Mapping[str, Any], *, overwrite: bool
) -> Any:
    """Return a writer of VOTES as a context manager; one of nothing where there is no output."""
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


def vote_columns(
    scored: Scored, vote: Vote, distrivote: DistriVote | None, probability_R: FloatArray | None
) -> dict[str, Any]:
    """Return the columns that VOTES and LABELS share, for a vote on each question."""
    size = len(scored.class_RN)
    nothing = [None] * size
    return {
        "step": [scored.step] * size,
        "query_id": scored.query_id,
        "gold": scored.gold,
        "n": scored.n_drawn_R,
        "n_valid": vote.n_valid_R,
        "majority_ratio": vote.majority_ratio_R,
        "label_ratio": vote.label_ratio_R,
        "tie": vote.tie_R,
        "label_probability": nothing
        if probability_R is None
        else pa.array(probability_R, from_pandas=True),  # NaN becomes null
        "n_pos": nothing if distrivote is None else distrivote.n_pos_R,
        "n_neg": nothing if distrivote is None else distrivote.n_neg_R,
        "rejected": nothing if distrivote is None else scored.spelling(distrivote.rejected_R),
        "fallback": nothing
        if distrivote is None
        else [FALLBACKS[index] or None for index in distrivote.fallback_R.tolist()],
    }


def _rows(contender: Contender, block: Scored, outcome: VoteOutcome, right_RC: FloatArray) -> pa.Table:
    vote, size = outcome.vote, len(block.query_id)
    probability_R = elected_probability(right_RC, vote.winner_R)
    columns = vote_columns(block, vote, outcome.distrivote, probability_R) | {
        "method": [contender.name] * size,
        "answer": block.spelling(vote.winner_R),
        "answer_class": vote.winner_R,
        "correct": block.correct(vote.winner_R),
        "n_votes": vote.n_votes_R,
        "margin": vote.margin_R,
        "diversity": block.n_classes_R,
    }
    if contender.needs_confidence:
        answered_RN = block.class_RN >= 0
        sighted_R = (answered_RN & np.isfinite(block.confidence_RN)).any(axis=1)
        blind_R = np.asarray(answered_RN.any(axis=1) & ~sighted_R)
        columns["fallback"] = [
            NO_CONFIDENCE if blind else known
            for blind, known in zip(blind_R, columns["fallback"], strict=True)
        ]
    for name in ("mean_neg", "std_neg", "mean_pos", "std_pos"):
        values = np.full(size, np.nan)
        if outcome.mixtures is not None:
            values[:] = np.where(outcome.mixtures.is_degenerate, np.nan, getattr(outcome.mixtures, name))
        columns[name] = pa.array(values, from_pandas=True)  # NaN becomes null
    arrays = [
        columns[column.name]
        if isinstance(columns[column.name], pa.Array)
        else pa.array(columns[column.name], column.type)
        for column in VOTES.fields
    ]
    return pa.table(arrays, schema=VOTES.fields)
