"""The Arrow schema of every stage: rollouts, votes, labels, confidence history, evaluations.

A column's meaning, unit, equation (LaTeX label of the paper) and the command that makes it travel with the
schema as field metadata, so that ``pyarrow.parquet.read_schema`` on any file of ours explains the file.
Types are explicit everywhere: an inferred type turns an empty list into ``null`` and a missing integer into
a float. Text is ``large_string``, per-token numbers are ``list<float32>``, confidences are ``float64``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from dttrl.errors import InputError

FORMAT_VERSION = 1

KEY_COLUMNS = ("step", "query_id", "sample_id")

_UNIT = "unit of the measure named in the file metadata"


@dataclass(frozen=True)
class TableSchema:
    """The columns of one stage: all that are known, those that a file must have, and the unique key.

    ``fields`` holds the known columns in their order. A file may lack those that are not required and may
    have columns that are not listed here. ``step`` is null (or absent) in data that no training step made.
    """

    name: str
    fields: pa.Schema
    required: frozenset[str]
    key: tuple[str, ...]

    def select(self, names: Iterable[str]) -> pa.Schema:
        """Return the schema of the named columns, in the order of ``fields``; raises for an unknown name."""
        wanted = set(names)
        unknown = sorted(wanted - set(self.fields.names))
        if unknown:
            raise InputError(
                f"{self.name} tables have no column {unknown[0]!r}; columns: {', '.join(self.fields.names)}"
            )
        chosen = [field for field in self.fields if field.name in wanted]
        return pa.schema(chosen, metadata=self.fields.metadata)

    def made_by(self, name: str) -> str:
        """Return the command that makes a column ("dttrl score"), or "" for a column we do not know."""
        if name not in self.fields.names:
            return ""
        metadata = self.fields.field(name).metadata or {}
        return str(metadata.get(b"command", b"").decode())


def _column(name: str, kind: pa.DataType, meaning: str, unit: str = "", equation: str = "") -> pa.Field:
    entries = {"meaning": meaning, "unit": unit, "equation": equation}
    return pa.field(name, kind, False, {key: value for key, value in entries.items() if value})


def _maybe(name: str, kind: pa.DataType, meaning: str, unit: str = "", equation: str = "") -> pa.Field:
    return _column(name, kind, meaning, unit, equation).with_nullable(True)


def _made(command: str, *columns: pa.Field) -> list[pa.Field]:
    return [column.with_metadata({**column.metadata, b"command": command}) for column in columns]


def _stage(name: str, key: tuple[str, ...], fields: list[pa.Field], *required: str) -> TableSchema:
    names = required or tuple(field.name for field in fields if not field.nullable)
    schema = pa.schema(fields, metadata={"stage": name})
    return TableSchema(name, schema, frozenset(names), key)


_STRING, _INT, _FLOAT, _BOOL = pa.string(), pa.int32(), pa.float64(), pa.bool_()
_INTS, _FLOATS = pa.list_(pa.int32()), pa.list_(pa.float32())

_STEP = _maybe("step", _INT, "training step, from 0; null where no training made the row")
_TRAINED_STEP = _column("step", _INT, "training step, from 0")
_QUERY = _column("query_id", _STRING, "id of the question")
_SAMPLE = _column("sample_id", _INT, "number of the rollout within its question, from 0")
_SOURCE = _maybe("source", _STRING, "data set that the question comes from")
_GOLD = _maybe("gold", _STRING, "reference answer; null where there is none")

ROLLOUTS = _stage(
    "rollouts",
    KEY_COLUMNS,
    [
        *_made(
            "dttrl generate",
            _STEP,
            _QUERY,
            _SAMPLE,
            _SOURCE,
            _column("prompt", _STRING, "the question, before any template"),
            _GOLD,
            _column("text", pa.large_string(), "the completion"),
            _column("finish_reason", _STRING, "why the completion ended: stop, length or abort"),
            _column("num_tokens", _INT, "length of the completion, end token included", "tokens"),
            _maybe("token_ids", _INTS, "token ids; only with --keep tokens"),
            _maybe(
                "token_offset",
                _INTS,
                "position in text where each token starts (its length for tokens that add no text)",
                "characters",
            ),
            _maybe(
                "token_confidence",
                _FLOATS,
                "minus the mean of the k largest log-probabilities, before temperature",
                "nats",
                "eq:traj_conf",
            ),
            _maybe("token_logprob", _FLOATS, "log p of the sampled token, before temperature", "nats"),
            _maybe(
                "token_entropy",
                _FLOATS,
                "entropy of the next token: full, or topk (the rest as one outcome), as the metadata say",
                "nats",
            ),
            _maybe("token_self_certainty", _FLOATS, "KL(uniform || next token), arXiv:2502.18581", "nats"),
        ),
        *_made(
            "dttrl score",
            _maybe("answer", _STRING, "extracted final answer; null: none found"),
            _maybe("answer_source", _STRING, "how it was found: boxed, phrase, choice, last-number"),
            _maybe("answer_class", _INT, "equivalence class within the question; -1: no answer"),
            _maybe(
                "confidence",
                _FLOAT,
                "trajectory confidence, higher is surer; null or NaN: cannot be computed",
                _UNIT,
                "eq:traj_conf",
            ),
        ),
        *_made(
            "dttrl train",
            _maybe("pseudo_label", _STRING, "label that the question was trained on"),
            _maybe("reward", _FLOAT, "1 where the answer equals the pseudo-label, else 0"),
            _maybe(
                "advantage",
                _FLOAT,
                "reward normalised within the question, times the diversity weight",
                equation="eq:weighted-advantage",
            ),
            _maybe("diversity_weight", _FLOAT, "weight of the question", equation="eq:uncertainty-weight"),
            _maybe("trained", _BOOL, "the rollout entered the policy update"),
        ),
    ],
    "query_id",
    "sample_id",
)

_LABEL_RATIO = _column("label_ratio", _FLOAT, "rollouts of the elected class / n", "fraction")
_MAJORITY_RATIO = _column(
    "majority_ratio", _FLOAT, "rollouts of the most frequent class / n", "fraction", "eq:majority_ratio"
)
_DIVERSITY = _column(
    "diversity", _INT, "number of answer classes among the rollouts", "classes", "eq:uncertainty-weight"
)
_N = _column("n", _INT, "rollouts of the question, those without an answer included", "rollouts")
_N_VALID = _column("n_valid", _INT, "rollouts with an answer", "rollouts")
_TIE = _column("tie", _BOOL, "several classes had the most votes")

_PROBABILITY = _maybe(
    "label_probability", _FLOAT, "probability that the elected answer is right; null: the vote says none"
)
_EXPECTED = _PROBABILITY.with_metadata(
    {
        "meaning": "probability that the elected answer is right, whichever method elected it, by one fit of "
        "the latent-answer model; null: none was elected"
    }
)

_DISTRI = (
    _maybe("n_pos", _INT, "rollouts in the positive set", "rollouts", "eq:global_gmm_split"),
    _maybe("n_neg", _INT, "rollouts in the negative set", "rollouts", "eq:global_gmm_split"),
    _maybe(
        "rejected",
        _STRING,
        "answer that the negative set elected and that was dropped; null: none",
        equation="eq:reject_filter",
    ),
    _maybe("fallback", _STRING, "why a plainer vote was taken; null: none was"),
)

VOTES = _stage(
    "votes",
    ("method", "step", "query_id"),
    _made(
        "dttrl vote",
        _column("method", _STRING, "voting strategy with its parameters"),
        _STEP,
        _QUERY,
        _maybe("answer", _STRING, "elected answer; null: nothing could be elected"),
        _column("answer_class", _INT, "class of the elected answer within the question; -1: none"),
        _GOLD,
        _maybe("correct", _BOOL, "the elected answer equals gold; null without gold"),
        _N,
        _N_VALID,
        _column("n_votes", _INT, "rollouts of the elected class, over all n", "rollouts"),
        _MAJORITY_RATIO,
        _LABEL_RATIO,
        _column("margin", _FLOAT, "share of the votes of the winner minus that of the runner-up"),
        _TIE,
        _DIVERSITY,
        _EXPECTED,
        *_DISTRI,
        _maybe("mean_neg", _FLOAT, "mean of the negative (lower) component of the mixture", _UNIT, "eq:gmm"),
        _maybe("std_neg", _FLOAT, "standard deviation of the negative component", _UNIT, "eq:gmm"),
        _maybe("mean_pos", _FLOAT, "mean of the positive (higher) component of the mixture", _UNIT, "eq:gmm"),
        _maybe("std_pos", _FLOAT, "standard deviation of the positive component", _UNIT, "eq:gmm"),
    ),
)

LABELS = _stage(
    "labels",
    ("step", "query_id"),
    _made(
        "dttrl train",
        _TRAINED_STEP,
        _QUERY,
        _maybe("label", _STRING, "pseudo-label; null: no rollout had an answer"),
        _column("label_class", _INT, "class of the pseudo-label within the question; -1: none"),
        _GOLD,
        _maybe("label_correct", _BOOL, "the pseudo-label equals gold; null without gold"),
        _maybe("majority_answer", _STRING, "answer of the most frequent class"),
        _N,
        _N_VALID,
        _MAJORITY_RATIO,
        _LABEL_RATIO,
        _TIE,
        _DIVERSITY,
        _column("diversity_weight", _FLOAT, "weight of the question", equation="eq:uncertainty-weight"),
        _column("reward_mean", _FLOAT, "mean reward over the trained rollouts", "fraction"),
        _PROBABILITY,
        *_DISTRI,
    ),
)

HISTORY = _stage(
    "history",
    KEY_COLUMNS,
    _made(
        "dttrl train",
        _TRAINED_STEP,
        _QUERY,
        _SAMPLE,
        _column(
            "confidence",
            _FLOAT,
            "trajectory confidence as it was measured at its step",
            _UNIT,
            "eq:traj_conf",
        ),
        _column(
            "midpoint",
            _FLOAT,
            "mean of the two means of the step's own mixture (the same on every row of a step)",
            _UNIT,
            "eq:shift_correction",
        ),
    ),
)

EVALUATIONS = _stage(
    "evaluations",
    ("step", "split", "query_id"),
    _made(
        "dttrl train",
        _TRAINED_STEP,
        _column("split", _STRING, "question set: train or heldout"),
        _QUERY,
        _SOURCE,
        _N,
        _column("n_correct", _INT, "rollouts whose answer equals gold", "rollouts"),
        _maybe("maj_correct", _BOOL, "the most frequent answer equals gold"),
        _MAJORITY_RATIO,
        _maybe("answer", _STRING, "most frequent answer; null: no rollout had one"),
        _GOLD,
    ),
)
