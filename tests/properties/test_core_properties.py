"""What must hold for any batch: votes, partition, weights, advantages, the pure signal and the history."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dttrl.errors import InputError
from dttrl.method.advantages import group_advantages
from dttrl.method.confidence import MEASURES, positive_weights
from dttrl.method.diversity import diversity, diversity_weights
from dttrl.method.history import History
from dttrl.method.methods import METHODS, Signal
from dttrl.method.mixture import Mixture, fit_mixture, fit_mixtures
from dttrl.method.partition import assign_positive
from dttrl.method.scored import Scored
from dttrl.method.training_signal import TrainingSignal, training_signal
from dttrl.method.voting.distrivoting import REJECTS, VOTE_FUNCTIONS, distrivoting
from dttrl.method.voting.majority import majority
from dttrl.method.voting.registry import METHODS as VOTES
from dttrl.method.voting.registry import parse_method
from dttrl.method.voting.weighted import weighted
from tests.scored_arrays import with_gold

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]

SPECIAL = st.sampled_from([float("nan"), float("inf"), 0.0])
USUAL = st.integers(0, 40).map(lambda i: i / 8)
ANY_CONFIDENCE = st.one_of(USUAL, USUAL, SPECIAL, st.floats(0, 1e6), st.floats(0, 1e-3))
SEPARATED = Mixture(1.0, 0.4, 0.5, 3.0, 0.6, 0.5, 100)
SIMPLE = [name for name in VOTES if name not in ("distrivoting", "progressive")] + [
    "mob:m=sqrt",
    "mob:m=3",
    "deepconf:top=0.5,f=majority",
]
VOTERS = [*SIMPLE, "progressive"] + [
    f"distrivoting:f={f},reject={r},refit={u}" for f in VOTE_FUNCTIONS for r in REJECTS for u in ("yes", "no")
]


@st.composite
def batches(draw: st.DrawFn, *, confidence: st.SearchStrategy[float] = ANY_CONFIDENCE) -> tuple[Ints, Floats]:
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 9)))
    classes = draw(hnp.arrays(np.int32, shape, elements=st.integers(-1, 3)))
    values = draw(hnp.arrays(np.float64, shape, elements=confidence))
    return classes, values


def choices_of(method: str, **choices: Any) -> Signal:
    """Settings, the parameters of the progressive vote under their older names; others ignore them."""
    return Signal.model_validate(Signal.adopt({"method": method, **choices}, lenient=True))


def signal_of(
    classes: Ints, confidence: Floats, name: str, history: History | None = None, **choices: Any
) -> tuple[TrainingSignal, History]:
    batch = with_gold(Scored(classes, confidence, 1), [0] * len(classes))
    n_train = choices.pop("train_samples", max(1, classes.shape[1] // 2))
    return training_signal(batch, history, choices_of(name, train_samples=n_train, **choices))


# Votes


@given(batches(), st.integers(1, 9))
def test_labels_never_rest_on_fewer_positives_than_asked_for(batch: tuple[Ints, Floats], least: int) -> None:
    classes, confidence = batch
    paper, _ = signal_of(classes, confidence, "distri-gmm")
    signal, _ = signal_of(classes, confidence, "distri-gmm", min_positives=least)
    plain, _ = signal_of(classes, confidence, "ttrl")
    assert signal.distrivote is not None
    few = signal.distrivote.n_pos_R < least
    np.testing.assert_array_equal(signal.label_B[few], plain.label_B[few])
    np.testing.assert_array_equal(signal.label_B[~few], paper.label_B[~few])


@given(batches(), st.randoms(use_true_random=False), st.sampled_from(VOTERS))
def test_a_vote_without_tie_does_not_depend_on_the_order(
    batch: tuple[Ints, Floats], random: Any, name: str
) -> None:
    classes, confidence = batch
    order = list(range(classes.shape[1]))
    random.shuffle(order)
    method = parse_method(name).vote
    before, after = method(classes, confidence).vote, method(classes[:, order], confidence[:, order]).vote
    clear = ~before.tie_R & ~after.tie_R
    if "distrivoting" not in name or "hierarchical" not in name:
        np.testing.assert_array_equal(before.tie_R, after.tie_R)
    # Inside a filtered vote, other ties (of the negatives, of an interval) may have been broken by order:
    # distinct confidences leave none of those.
    assume(all(len(set(row)) == len(row) for row in confidence.tolist()) or name in SIMPLE)
    np.testing.assert_array_equal(before.winner_R[clear], after.winner_R[clear])
    np.testing.assert_array_equal(before.majority_ratio_R, after.majority_ratio_R)


@given(batches(confidence=USUAL), st.integers(-64, 64))
def test_majority_partition_and_label_do_not_see_a_shift(batch: tuple[Ints, Floats], eighths: int) -> None:
    """Confidences and shifts are multiples of 1/8, so that nothing is rounded and exact ties stay ties."""
    classes, confidence = batch
    shift = eighths / 8
    moved_mixture = SEPARATED.shifted(shift)
    np.testing.assert_array_equal(
        assign_positive(confidence, SEPARATED), assign_positive(confidence + shift, moved_mixture)
    )
    for reject in REJECTS:
        before = distrivoting(classes, confidence, SEPARATED, reject=reject)
        after = distrivoting(classes, confidence + shift, moved_mixture, reject=reject)
        np.testing.assert_array_equal(before.vote.winner_R, after.vote.winner_R)
        np.testing.assert_array_equal(before.fallback_R, after.fallback_R)
        np.testing.assert_array_equal(before.rejected_R, after.rejected_R)


@given(st.integers(0, 2**32 - 1), st.floats(-100, 100))
@settings(max_examples=10)
def test_the_fit_moves_with_a_shift(seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(0, 1, 30), rng.normal(6, 0.5, 20)])
    one, other = fit_mixture(values), fit_mixture(values + shift)
    assert one.degenerate is None
    for name in ("mean_neg", "mean_pos"):
        assert getattr(other, name) - getattr(one, name) == pytest.approx(shift, abs=1e-4)
    for name in ("std_neg", "std_pos", "weight_neg", "weight_pos"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), abs=1e-4)
    margin = np.abs(assign_margin(values, one)) > 1e-3
    same = assign_positive(values[None, :], one) == assign_positive(values[None, :] + shift, other)
    assert same[0][margin].all()


def assign_margin(values: Floats, mixture: Mixture) -> Floats:
    def log_density(mean: float, std: float) -> Floats:
        return np.asarray(-np.log(std) - 0.5 * ((values - mean) / std) ** 2)

    return log_density(mixture.mean_pos, mixture.std_pos) - log_density(mixture.mean_neg, mixture.std_neg)


@given(batches())
def test_partition_is_the_likelier_component_and_never_nan(batch: tuple[Ints, Floats]) -> None:
    _, confidence = batch
    wide = Mixture(1.0, 0.25, 0.1, 2.0, 2.0, 0.9, 100)
    positive = assign_positive(confidence, wide)
    finite = np.isfinite(confidence)
    assert not positive[~finite].any()
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(positive[finite], assign_margin(confidence, wide)[finite] > 0)
    # A component's weight plays no part (eq:sample_assignment).
    other = Mixture(1.0, 0.25, 0.9, 2.0, 2.0, 0.1, 100)
    np.testing.assert_array_equal(positive, assign_positive(confidence, other))
    monotone = assign_positive(confidence, wide, monotone=True)
    assert monotone[finite & (confidence >= 2.0)].all()
    assert not monotone[confidence <= 1.0].any()
    between = (confidence > 1.0) & (confidence < 2.0)
    np.testing.assert_array_equal(monotone[between], positive[between])


def test_a_wide_positive_component_claims_very_low_confidences() -> None:
    confidence = np.array([[-20.0, 1.0, 4.0]])
    wide = Mixture(1.0, 0.25, 0.5, 2.0, 2.0, 0.5, 100)
    assert assign_positive(confidence, wide).tolist() == [[True, False, True]]
    assert assign_positive(confidence, wide, monotone=True).tolist() == [[False, False, True]]


def test_a_tie_between_components_is_negative() -> None:
    assert assign_positive(np.array([[2.0]]), Mixture(1.0, 0.5, 0.5, 3.0, 0.5, 0.5, 10)).tolist() == [[False]]


@given(batches(), st.sampled_from(VOTERS))
def test_the_elected_answer_was_given_by_somebody(batch: tuple[Ints, Floats], name: str) -> None:
    classes, confidence = batch
    before = classes.copy(), confidence.copy()
    vote = parse_method(name)[1](classes, confidence).vote
    np.testing.assert_array_equal(classes, before[0])
    np.testing.assert_array_equal(confidence, before[1])
    for r, row in enumerate(classes.tolist()):
        valid = [a for a in row if a >= 0]
        winner = int(vote.winner_R[r])
        assert (winner == -1) == (not valid), name
        assert winner == -1 or winner in valid
        assert vote.n_votes_R[r] == valid.count(winner)
    assert ((vote.margin_R >= 0) & (vote.margin_R <= 1)).all()
    assert (vote.label_ratio_R <= vote.majority_ratio_R + 1e-12).all()


# A unanimous question, a question without answers


@given(
    hnp.arrays(np.float64, st.tuples(st.just(3), st.integers(1, 9)), elements=ANY_CONFIDENCE),
    st.integers(0, 3),
    st.lists(st.booleans(), min_size=9, max_size=9),
    st.sampled_from(VOTERS),
)
def test_a_unanimous_question_keeps_its_answer_offline(
    confidence: Floats, answer: int, answered: list[bool], name: str
) -> None:
    """Under every strategy and any confidences, also when some rollouts gave no answer."""
    given_by = np.array([True, *answered[1:]])[: confidence.shape[1]]
    classes = np.where(given_by, answer, -1).astype(np.int32)[None, :].repeat(3, axis=0)
    assert (parse_method(name)[1](classes, confidence).vote.winner_R == answer).all()


@given(
    batches(),
    st.integers(0, 3),
    st.sampled_from([name for name in METHODS if name != "ttrl-gt"]),
    st.sampled_from(VOTE_FUNCTIONS),
    st.sampled_from(REJECTS),
    st.booleans(),
)
def test_a_unanimous_question_keeps_its_answer_in_training(
    batch: tuple[Ints, Floats], answer: int, name: str, f_vote: Any, reject: Any, monotone: bool
) -> None:
    classes, confidence = batch
    classes = classes.copy()
    classes[0] = answer
    history = None
    for step in (1, 2):
        scored = Scored(classes, confidence + step, step)
        choices = choices_of(name, train_samples=1, f_vote=f_vote, reject=reject, monotone=monotone)
        signal, history = training_signal(scored, history, choices)
        assert signal.label_B[0] == answer
        assert signal.reward_BG[0].tolist() == [1.0] * classes.shape[1]
        assert (signal.advantage_BM[0] == 0).all()


@given(batches(), st.sampled_from(sorted(METHODS)), st.sampled_from(VOTE_FUNCTIONS))
def test_a_question_without_answers_earns_nothing(batch: tuple[Ints, Floats], name: str, f_vote: Any) -> None:
    classes, confidence = batch
    classes = classes.copy()
    classes[-1] = -1
    signal, _ = signal_of(classes, confidence, name, f_vote=f_vote)
    if name != "ttrl-gt":
        assert signal.label_B[-1] == -1
    assert (signal.reward_BG[-1] == 0).all()
    assert (signal.advantage_BM[-1] == 0).all()
    assert signal.diversity_B[-1] == 0
    assert (signal.reward_BG[classes < 0] == 0).all()


# The whole signal


@given(batches(), st.sampled_from(sorted(METHODS)), st.sampled_from(["none", "question"]), st.booleans())
def test_the_signal_of_any_batch_is_finite_and_consistent(
    batch: tuple[Ints, Floats], name: str, centre: Any, monotone: bool
) -> None:
    classes, confidence = batch
    signal, _ = signal_of(classes, confidence, name, centre=centre, monotone=monotone)
    b, g = classes.shape
    m = max(1, g // 2)
    assert signal.reward_BG.shape == (b, g)
    assert signal.trained_BM.shape == signal.advantage_BM.shape == (b, m)
    assert np.isfinite(signal.advantage_BM).all()
    assert ((signal.weight_B > 0) & (signal.weight_B <= 1)).all()
    for i in range(b):
        label = int(signal.label_B[i])
        paid = [float(a >= 0 and a == label) for a in classes[i].tolist()]
        assert signal.reward_BG[i].tolist() == paid
    assert (signal.progressive is not None) == (name == "distri-gmm")
    if not METHODS[name].diversity:
        assert (signal.weight_B == 1).all()


@given(batches(), batches(), st.sampled_from(sorted(METHODS)))
def test_the_signal_is_pure(first: tuple[Ints, Floats], second: tuple[Ints, Floats], name: str) -> None:
    _, history = signal_of(*first, name)
    batch = with_gold(Scored(*second, 2), [0] * len(second[0]))
    untouched = copy.deepcopy((batch, history))
    choices = choices_of(name, train_samples=1)
    one = training_signal(batch, history, choices)
    two = training_signal(batch, history, choices)
    assert_same(one, two)
    assert_same((batch, history), untouched)


def assert_same(a: Any, b: Any) -> None:
    """Equal to the bit, through tuples, dataclasses with slots and arrays; NaN equals NaN."""
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif hasattr(a, "__dataclass_fields__"):
        for name in a.__dataclass_fields__:
            assert_same(getattr(a, name), getattr(b, name))
    else:
        assert a == b or (a != a and b != b)


@given(batches(confidence=USUAL), st.sampled_from(["ttrl", "ttrl-wsc", "distri-gmm"]))
def test_questions_of_a_batch_can_be_permuted(batch: tuple[Ints, Floats], name: str) -> None:
    classes, confidence = batch
    one, _ = signal_of(classes, confidence, name)
    other, _ = signal_of(classes[::-1], confidence[::-1], name)
    np.testing.assert_array_equal(one.label_B[::-1], other.label_B)
    np.testing.assert_allclose(one.advantage_BM[::-1], other.advantage_BM)


@pytest.mark.parametrize("measure", [m for m in MEASURES if m not in ("logprob", "entropy")])
@pytest.mark.parametrize(
    ("name", "f_vote"), [("ttrl-wsc", "majority"), ("distri-gmm", "weighted"), ("distri-gmm", "hierarchical")]
)
def test_weighting_by_a_negative_measure_is_refused(measure: Any, name: str, f_vote: Any) -> None:
    batch = Scored(np.array([[0, 1, 0]], np.int32), np.array([[-1.0, -0.2, np.nan]]), 1, measure)
    with pytest.raises(InputError, match=f"must not be negative.*{measure}.*-1"):
        training_signal(batch, None, choices_of(name, train_samples=1, f_vote=f_vote))


@pytest.mark.parametrize("measure", ["logprob", "entropy"])
def test_log_scale_measures_vote_with_probabilities(measure: Any) -> None:
    """-0.1 twice beats -3 three times: raw negative weights would elect the rarest, class 0 or 2."""
    classes = np.array([[0, 1, 1, 2, 2, 2]], np.int32)
    confidence = np.array([[-4.0, -0.1, -0.1, -3.0, -3.0, -3.0]])
    batch = Scored(classes, confidence, 1, measure)
    signal, _ = training_signal(batch, None, choices_of("ttrl-wsc", train_samples=1))
    assert signal.label_B.tolist() == [1]
    np.testing.assert_allclose(positive_weights(confidence, measure), np.exp(confidence))


def test_a_negative_weight_is_refused_by_the_vote_itself() -> None:
    with pytest.raises(InputError, match="at least 0"):
        weighted(np.array([[0, 1]], np.int32), np.array([[0.5, -0.1]]))


def test_a_majority_takes_negative_confidences() -> None:
    batch = Scored(np.array([[0, 1, 1]], np.int32), np.array([[-1.0, -2.0, -3.0]]), 1, "logprob")
    for name in ("ttrl", "distri-gmm"):
        signal, _ = training_signal(batch, None, choices_of(name, train_samples=1))
        assert signal.label_B.tolist() == [1]


def test_gold_classes_are_read_by_the_ground_truth_method_alone() -> None:
    classes, confidence = np.array([[0, 0, 1]], np.int32), np.array([[1.0, 2.0, 3.0]])
    gold = with_gold(Scored(classes, confidence, 1), [1])
    nobody = with_gold(Scored(classes, confidence, 1), [-1])
    without = Scored(classes, confidence, 1)
    for name in METHODS:
        if name == "ttrl-gt":
            continue
        labels = {
            int(training_signal(b, None, choices_of(name, train_samples=3))[0].label_B[0])
            for b in (gold, nobody, without)
        }
        assert len(labels) == 1
    choices = choices_of("ttrl-gt", train_samples=3)
    assert training_signal(gold, None, choices)[0].reward_BG.tolist() == [[0.0, 0.0, 1.0]]
    assert training_signal(nobody, None, choices)[0].reward_BG.tolist() == [[0.0, 0.0, 0.0]]
    with pytest.raises(InputError, match="gold"):
        training_signal(without, None, choices)


def test_more_trained_than_voted_is_refused() -> None:
    with pytest.raises(InputError, match="train-samples"):
        signal_of(np.zeros((1, 2), np.int32), np.ones((1, 2)), "ttrl", train_samples=3)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_an_empty_batch_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="at least one"):
        Scored(np.zeros(shape, np.int32), np.zeros(shape), 1)


def test_classes_and_confidences_must_have_one_shape() -> None:
    with pytest.raises(InputError, match=r"\(2, 3\).*\(2, 4\)"):
        Scored(np.zeros((2, 3), np.int32), np.zeros((2, 4)), 1)


@pytest.mark.parametrize(("over", "expected"), [("voted", 4), ("trained", 2)])
def test_diversity_over(over: Any, expected: int) -> None:
    classes = np.array([[0, 0, 1, 2, 3, -1], [0, 0, 0, 0, 0, 0]], np.int32)
    signal, _ = signal_of(
        classes, np.ones((2, 6)), "distri-wsc", train_samples=3, diversity_over=over, tau=0.5
    )
    assert signal.diversity_B.tolist() == [expected, 1]
    softmax = 1 / (1 + np.exp(expected - 1))
    assert signal.weight_B.tolist() == pytest.approx([1.0, softmax])


# Degenerate data


DEGENERATE: dict[str, tuple[list[list[int]], list[list[float]]]] = {
    "one rollout": ([[2]], [[1.0]]),
    "one rollout, no answer": ([[-1]], [[1.0]]),
    "no answers": ([[-1, -1, -1, -1]], [[1.0, 2.0, 3.0, 4.0]]),
    "equal confidences": ([[0, 1, 1, 2], [0, 0, 1, 1]], [[2.0] * 4, [2.0] * 4]),
    "all NaN": ([[0, 1, 1, 2]], [[np.nan] * 4]),
    "all inf": ([[0, 1, 1, 2]], [[np.inf] * 4]),
    "one finite": ([[0, 1, 1, 2]], [[np.nan, np.inf, 1.0, np.nan]]),
    "three rollouts": ([[0, 1, 1]], [[1.0, 2.0, 3.0]]),
    "two values": ([[0, 0, 1, 1, 1]], [[1.0, 1.0, 2.0, 2.0, 2.0]]),
    "zeros": ([[0, 1, 1, 2]], [[0.0] * 4]),
    "tiny": ([[0, 1, 1, 2]], [[5e-324, 1e-320, 1e-310, 2e-300]]),
    "outlier": ([[0, 1, 1, 2, 1]], [[1.0, 1.1, 1.2, 1.3, 1e12]]),
    "rounding": ([[0, 1, 1, 2, 1]], [[1.0, 1.0 + 2e-16, 1.0 + 4e-16, 1.0 + 7e-16, 1.0 + 9e-16]]),
}


@pytest.mark.parametrize("case", sorted(DEGENERATE))
@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.filterwarnings("error")
def test_degenerate_batches_get_the_plain_vote(name: str, case: str) -> None:
    classes, confidence = np.array(DEGENERATE[case][0], np.int32), np.array(DEGENERATE[case][1])
    signal, history = signal_of(classes, confidence, name)
    assert np.isfinite(signal.advantage_BM).all()
    if signal.progressive is not None:
        if signal.progressive.mixture.is_degenerate:
            np.testing.assert_array_equal(signal.label_B, majority(classes, confidence).winner_R)
        signal, history = training_signal(
            Scored(classes, confidence, 2), history, choices_of(name, train_samples=1)
        )
        assert np.isfinite(signal.advantage_BM).all()
        assert all(np.isfinite(past.centred).all() for past in history.steps)


@pytest.mark.parametrize("case", sorted(set(DEGENERATE) - {"no answers", "outlier", "tiny", "rounding"}))
def test_degenerate_data_have_no_mixture(case: str) -> None:
    confidence = np.array(DEGENERATE[case][1])
    mixture = fit_mixture(confidence)
    assert mixture.is_degenerate
    assert mixture.degenerate
    assert fit_mixtures(confidence).is_degenerate.all()
    finite = confidence[np.isfinite(confidence)]
    if finite.size:
        assert mixture.midpoint == pytest.approx(finite.mean())
    assert not assign_positive(confidence, mixture).any()
    assert not assign_positive(confidence, fit_mixtures(confidence)).any()


@given(hnp.arrays(np.float64, st.integers(0, 30), elements=st.floats(allow_nan=True, allow_infinity=True)))
@example(np.array([]))
@settings(max_examples=60)
@pytest.mark.filterwarnings("error")
def test_a_mixture_never_raises(values: Floats) -> None:
    for mixture in (fit_mixture(values), fit_mixtures(values[None, :])[0]):
        assert mixture.n == np.isfinite(values).sum()
        if not mixture.is_degenerate:
            assert np.isfinite([mixture.mean_neg, mixture.mean_pos, mixture.std_neg, mixture.std_pos]).all()
            assert mixture.mean_neg <= mixture.mean_pos
            assert min(mixture.std_neg, mixture.std_pos) > 0
            assert 0 < mixture.weight_neg < 1


@pytest.mark.parametrize("values", [[0.0, 1.0, 2.0, 3.1, 4.2], [0.1, 0.4, 0.6, 0.6, 1.4, 1.8]])
def test_two_equal_components_are_no_mixture(values: list[float]) -> None:
    for mixture in (fit_mixture(values), fit_mixtures(np.array([values]))[0]):
        assert mixture.is_degenerate or mixture.mean_pos - mixture.mean_neg > 1e-3


@pytest.mark.parametrize("values", [[1.0, 1.1, 2.0, 2.2], [0.0, 1.0, 5.0, 6.0, 7.0]])
def test_two_points_are_enough_for_a_component(values: list[float]) -> None:
    assert not fit_mixture(values).is_degenerate


# Diversity weights


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=8), st.sampled_from([4, 64, 2000]))
@example([2000, 0], 64)
@example([2000, 1999, 1], 2000)
@example([2000], 2000)
@pytest.mark.filterwarnings("error")
def test_weights_lie_in_zero_one_and_do_not_overflow(counts: list[int], n_rollouts: int) -> None:
    weights = diversity_weights(np.array(counts, dtype=np.int32), n_rollouts)
    assert np.isfinite(weights).all()
    assert ((weights > 0) & (weights <= 1)).all()
    penalised = np.array(counts) <= 0.1 * n_rollouts
    assert (weights[~penalised] == 1).all()
    if penalised.all():
        assert weights.sum() == pytest.approx(1)
    for i, count in enumerate(counts):
        for j, other in enumerate(counts):
            if penalised[i] and penalised[j] and count < other:
                assert weights[i] <= weights[j]


@given(batches())
def test_diversity_counts_classes(batch: tuple[Ints, Floats]) -> None:
    assert diversity(batch[0]).tolist() == [len(set(row) - {-1}) for row in batch[0].tolist()]


@pytest.mark.parametrize("tau", [0.0, 1.0, -0.1, float("nan")])
def test_a_bad_threshold_is_refused(tau: float) -> None:
    with pytest.raises(InputError, match="tau"):
        diversity_weights(np.array([1], np.int32), 4, tau=tau)


# Advantages


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 4), st.integers(1, 64)),
        elements=st.sampled_from([0.0, 1.0, 0.1, -1.0, 0.3, 100.0]),
    )
)
def test_advantages_are_centred_with_unit_deviation_or_zero(reward: Floats) -> None:
    advantage = group_advantages(reward)
    for row, values in zip(reward, advantage, strict=True):
        if len(set(row.tolist())) == 1:
            assert (values == 0).all()
        else:
            assert values.mean() == pytest.approx(0, abs=1e-12)
            assert values.std() == pytest.approx(1)
            assert (np.argsort(values, kind="stable") == np.argsort(row, kind="stable")).all()


@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3, 1.0, 0.0])
@pytest.mark.parametrize("m", [1, 3, 7, 10, 32])
def test_equal_rewards_give_exactly_zero(value: float, m: int) -> None:
    assert (group_advantages(np.full((2, m), value)) == 0).all()


# History


@given(st.lists(batches(), min_size=1, max_size=4), st.sampled_from([None, 0, 1, 2]))
@settings(max_examples=20)
def test_history_round_trips_bit_for_bit(run: list[tuple[Ints, Floats]], window: int | None) -> None:
    history = History(window=window)
    for step, (_, confidence) in enumerate(run):
        _, history = history.advance(step, confidence)
    arrays = history.to_arrays()
    assert all(array.dtype == np.float64 for array in arrays.values())
    again = History(window=window).restored({name: array.copy() for name, array in arrays.items()})
    assert_same(again.steps, history.steps)
    assert again.window == history.window
    assert_same(again.to_arrays(), arrays)
    following = np.array([[1.0, 1.2, 3.0, 3.5, 1.1, 3.2]])
    assert_same(again.advance(99, following)[0], history.advance(99, following)[0])
    assert_same(again.advance(99, following)[1].to_arrays(), history.advance(99, following)[1].to_arrays())


@given(st.integers(0, 4), st.integers(1, 7))
@settings(max_examples=20)
def test_history_window(window: int, n_steps: int) -> None:
    """The aggregate holds the current step and at most ``window`` steps before it, the most recent ones."""
    rng = np.random.default_rng(0)
    history = History(window=window)
    for step in range(n_steps):
        values = np.concatenate([rng.normal(0, 1, 6), rng.normal(8, 1, 6)])
        progressive, history = history.advance(step, values)
        used = min(window, step) + 1
        assert progressive.pool_size == 12 * used
        assert progressive.mixture.n == 12 * used
        assert [past.step for past in history.steps] == list(range(step - used + 1, step + 1))


def test_history_refuses_a_step_out_of_order() -> None:
    _, history = History().advance(3, np.array([1.0, 2.0]))
    for step in (3, 2):
        with pytest.raises(InputError, match=f"cannot add step {step}"):
            history.advance(step, np.array([1.0]))
    with pytest.raises(InputError, match="window"):
        History(window=-1)


def test_history_advance_leaves_the_old_one_alone() -> None:
    _, history = History().advance(1, np.arange(8.0))
    before = copy.deepcopy(history)
    values = np.arange(8.0)
    history.advance(2, values)
    assert_same(history, before)
    np.testing.assert_array_equal(values, np.arange(8.0))


def test_a_method_without_memory_leaves_the_history_alone() -> None:
    classes, confidence = np.array([[0, 1, 1, 0, 1]], np.int32), np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    _, history = signal_of(classes, confidence, "distri-gmm")
    for name in METHODS:
        if not METHODS[name].history:
            batch = with_gold(Scored(classes, confidence, 2), [0])
            assert training_signal(batch, history, choices_of(name, train_samples=1))[1] is history


@given(batches(), st.sampled_from(sorted(VOTES)))
def test_every_strategy_labels_as_it_votes(batch: tuple[Ints, Floats], name: str) -> None:
    """A row of the registry is all that a new way to label needs; without a history the pool is the step."""
    classes, values = batch
    values = np.abs(values)  # weights
    settings = Signal(method="ttrl", label=name, train_samples=1)
    signal, history = training_signal(Scored(classes, values, 1), None, settings)
    expected = parse_method(name).vote(classes, values)
    assert np.array_equal(signal.label_B, expected.vote.winner_R)
    assert np.array_equal(signal.vote.tie_R, expected.vote.tie_R)
    assert not history.steps


@given(batches())
def test_the_methods_of_the_paper_are_rows_of_the_registry(batch: tuple[Ints, Floats]) -> None:
    classes, values = batch
    values = np.abs(values)
    for method, vote in (("ttrl", "sc"), ("ttrl-wsc", "wsc"), ("distri-gmm", "progressive")):
        own, _ = signal_of(classes, values, method)
        labelled, _ = signal_of(classes, values, method, label=vote)
        assert np.array_equal(own.label_B, labelled.label_B)
        assert np.array_equal(own.label_B, parse_method(vote).vote(classes, values).vote.winner_R)
