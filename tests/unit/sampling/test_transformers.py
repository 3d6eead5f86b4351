"""The in-process sampler on tiny random models, against a decoding loop without cache, batch or padding."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from dttrl.data.rollouts import Rollout
from dttrl.errors import InputError
from dttrl.rng import derive
from dttrl.sampling.base import SampleRequest
from dttrl.sampling.transformers import TransformersSampler
from dttrl.settings.commands import GenerateConfig
from dttrl.settings.files import load_config
from dttrl.settings.sections import Sampling

EOS = 1
CHARACTERS = string.digits + "+-*=. \nabcdef"
SIZES: dict[str, Any] = {
    "vocab_size": 3 + len(CHARACTERS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "attention_dropout": 0.5,
}


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", "<unk>", *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )


def build(kind: str = "llama") -> Any:
    torch.manual_seed(3)
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**SIZES))
    if kind == "sliding":
        return MistralForCausalLM(MistralConfig(sliding_window=7, **SIZES))
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    if kind == "eager":
        model.set_attn_implementation("eager")
    return model


def request(text: str, query_id: str, samples: Sequence[int], step: int | None = None) -> SampleRequest:
    return SampleRequest(query_id, tuple(tokenizer()(text)["input_ids"]), tuple(samples), step)


REQUESTS = [
    request("12+3=", "a", range(5)),
    request("7*8-100=", "b", [4, 0, 2]),
    request("1", "c", range(4)),
    request("90+3=", "d", range(2)),
]


def sampled(
    sampler: TransformersSampler, requests: Sequence[SampleRequest], **settings: Any
) -> dict[Any, Rollout]:
    # A copy, since k = 0 (no statistics) is no setting of users.
    chosen = Sampling(max_new_tokens=40, seed=5).model_copy(update=settings)
    lists = list(sampler.sample(requests, chosen))
    wanted = {item.query_id: list(item.sample_ids) for item in requests}
    assert {rollouts[0].query_id: [r.sample_id for r in rollouts] for rollouts in lists} == wanted
    return {(r.query_id, r.sample_id): r for rollouts in lists for r in rollouts}


@torch.no_grad()
def reference(
    model: Any, prompt: Sequence[int], uniforms: np.ndarray, temperature: float
) -> tuple[list[int], np.ndarray]:
    """Ids, and the four statistics of each token: whole sequence, no cache, numpy in float64."""
    ids, numbers = list(prompt), []
    for u in uniforms:
        logits = model.eval()(input_ids=torch.tensor([ids])).logits[0, -1].double().numpy()
        logprob = logits - np.logaddexp.reduce(logits)
        p = np.exp(logits / temperature - np.logaddexp.reduce(logits / temperature))
        token = int(np.argmax(np.cumsum(p) > u * p.sum()))
        numbers.append(
            (
                -np.sort(logprob)[-20:].mean(),
                logprob[token],
                -(np.exp(logprob) * logprob).sum(),
                -logprob.mean() - np.log(len(logprob)),
            )
        )
        ids.append(token)
        if token == EOS:
            break
    return ids[len(prompt) :], np.array(numbers).T


@pytest.mark.parametrize("kind", ["llama", "eager", "qwen2", "sliding"])
@pytest.mark.parametrize("batch_size", [64, 3])
@pytest.mark.parametrize("static", [False, True])
def test_agrees_with_a_loop_without_cache_batch_or_padding(kind: str, batch_size: int, static: bool) -> None:
    model = build(kind)
    rollouts = sampled(
        TransformersSampler(model, tokenizer(), (EOS,), static=static),
        REQUESTS,
        temperature=0.7,
        batch_size=batch_size,
    )
    prompts = {item.query_id: item.prompt_ids for item in REQUESTS}
    for (query_id, sample_id), rollout in list(rollouts.items())[::2]:
        uniforms = derive(5, query=query_id, purpose=f"sample:{sample_id}").random(40, dtype=np.float32)
        ids, numbers = reference(model, prompts[query_id], uniforms, 0.7)
        assert rollout.token_ids.tolist() == ids
        assert rollout.finish_reason == ("stop" if ids[-1] == EOS else "length")
        found = (
            rollout.token_confidence,
            rollout.token_logprob,
            rollout.token_entropy,
            rollout.token_self_certainty,
        )
        np.testing.assert_allclose(np.stack(found), numbers, rtol=1e-4, atol=1e-5)


def test_lengths_and_ends_differ() -> None:
    """The other tests mean little unless rows end at different places, some by length."""
    rollouts = sampled(TransformersSampler(build(), tokenizer(), (EOS,)), REQUESTS, temperature=0.7).values()
    assert {rollout.finish_reason for rollout in rollouts} == {"stop", "length"}
    assert len({rollout.num_tokens for rollout in rollouts}) > 4


def test_samples_do_not_depend_on_batch_order_or_company() -> None:
    sampler = TransformersSampler(build(), tokenizer(), (EOS,))
    everything = sampled(sampler, REQUESTS, max_new_tokens=150)
    for other in (
        sampled(sampler, REQUESTS, max_new_tokens=150, batch_size=3),
        sampled(sampler, REQUESTS[::-1], max_new_tokens=150, batch_size=4),
        sampled(sampler, [request("7*8-100=", "b", [2])], max_new_tokens=150),
        sampled(sampler, [request("12+3=", "a", [4, 1])], max_new_tokens=150),
    ):
        for key, rollout in other.items():
            assert rollout.token_ids.tolist() == everything[key].token_ids.tolist()
            np.testing.assert_allclose(rollout.token_logprob, everything[key].token_logprob, atol=1e-5)


def test_seed_step_query_and_sample_each_change_the_draw() -> None:
    sampler = TransformersSampler(build(), tokenizer(), ())
    base = sampled(sampler, [request("1+1=", "a", [0, 1])])
    texts = {
        base["a", 0].text,
        base["a", 1].text,
        sampled(sampler, [request("1+1=", "a", [0])], seed=6)["a", 0].text,
        sampled(sampler, [request("1+1=", "z", [0])])["z", 0].text,
        sampled(sampler, [request("1+1=", "a", [0], step=3)])["a", 0].text,
    }
    assert len(texts) == 5


def test_end_token_is_kept_as_a_token_and_left_out_of_the_text() -> None:
    for rollout in sampled(TransformersSampler(build(), tokenizer(), (EOS,)), REQUESTS).values():
        ended = rollout.finish_reason == "stop"
        ids = rollout.token_ids.tolist()
        assert (EOS in ids) == ended
        assert ended == (ids[-1] == EOS)
        # One character a token, but for tokens without text (padding, unknown).
        assert rollout.text == "".join(CHARACTERS[i - 3] for i in ids if i > 2)
        assert rollout.token_offset.tolist() == [sum(j > 2 for j in ids[:place]) for place in range(len(ids))]
        if ended:
            assert rollout.token_offset[-1] == len(rollout.text)


def test_an_end_token_that_the_tokenizer_does_not_call_special() -> None:
    newline = 3 + CHARACTERS.index("\n")
    rollouts = sampled(
        TransformersSampler(build(), tokenizer(), (EOS, newline)), REQUESTS, max_new_tokens=100
    )
    ended = [r for r in rollouts.values() if r.token_ids[-1] == newline]
    assert ended
    assert all("\n" not in r.text and r.finish_reason == "stop" for r in ended)


@pytest.mark.parametrize("stop", [("3",), ("c", "+4"), ("1 b", "2d", "a9", "=4", "b7", "de", ".5", "f1")])
def test_stop_strings_cut_the_row_at_the_first_token_that_completes_one(stop: tuple[str, ...]) -> None:
    sampler = TransformersSampler(build(), tokenizer(), (EOS,))
    free = sampled(sampler, REQUESTS, max_new_tokens=150)
    cut = sampled(sampler, REQUESTS, max_new_tokens=150, stop=stop)
    met = 0
    for key, rollout in cut.items():
        whole = free[key].text
        places = [(whole.index(s), whole.index(s) + len(s)) for s in stop if s in whole]
        if not places:
            assert rollout.token_ids.tolist() == free[key].token_ids.tolist()
            assert rollout.text == whole
            continue
        met += 1
        end = min(last for _, last in places)
        assert rollout.text == whole[: min(first for first, last in places if last == end)]
        assert rollout.finish_reason == "stop"
        assert tokenizer().decode(rollout.token_ids, skip_special_tokens=True) == whole[:end]
        assert rollout.token_offset.max() <= len(rollout.text)
        assert len(rollout.token_logprob) == len(rollout.token_offset) == rollout.num_tokens
    assert met > 2


def test_temperature_zero_takes_the_most_likely_token() -> None:
    model = build().eval()
    rollouts = sampled(
        TransformersSampler(model, tokenizer(), ()), [request("1+2=", "a", [0, 1])], temperature=0
    )
    prompt = torch.tensor([request("1+2=", "a", [0]).prompt_ids])
    expected = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=40,
        eos_token_id=[],
        pad_token_id=0,
    )
    assert (
        rollouts["a", 0].token_ids.tolist() == rollouts["a", 1].token_ids.tolist() == expected[0, 4:].tolist()
    )


def test_without_statistics_the_tokens_are_the_same_and_the_arrays_empty() -> None:
    sampler = TransformersSampler(build(), tokenizer(), (EOS,))
    plain = sampled(sampler, REQUESTS, k=0)
    for key, rollout in sampled(sampler, REQUESTS).items():
        assert plain[key].token_ids.tolist() == rollout.token_ids.tolist()
        assert len(plain[key].token_confidence) == len(plain[key].token_entropy) == 0
        assert rollout.token_confidence.dtype == rollout.token_entropy.dtype == np.float32


def test_the_model_is_left_as_it_was_found_also_between_questions() -> None:
    model = build().train()
    model.model.layers[0].eval()
    model.gradient_checkpointing_enable()
    model.config.use_cache = False
    modes = {name: module.training for name, module in model.named_modules()}
    rollouts: list[Rollout] = []
    for lists in TransformersSampler(model, tokenizer(), (EOS,)).sample(
        REQUESTS, Sampling(max_new_tokens=9, batch_size=4)
    ):
        assert modes == {name: module.training for name, module in model.named_modules()}
        assert not torch.is_inference_mode_enabled()
        rollouts += lists
        loss = model(input_ids=torch.tensor([[4, 5, 6]]), labels=torch.tensor([[4, 5, 6]])).loss
        loss.backward()  # the caller trains in between
    assert model.config.use_cache is False
    assert model.is_gradient_checkpointing
    # Attention dropout of a half would show in the statistics.
    again = sampled(
        TransformersSampler(model.eval(), tokenizer(), (EOS,)), REQUESTS, max_new_tokens=9, seed=0
    )
    for rollout in rollouts:
        same = again[rollout.query_id, rollout.sample_id]
        np.testing.assert_allclose(rollout.token_entropy, same.token_entropy, atol=1e-5)


def test_autocast_keeps_statistics_in_float32() -> None:
    sampler = TransformersSampler(build(), tokenizer(), (EOS,), autocast_dtype=torch.bfloat16)
    exact = sampled(TransformersSampler(build(), tokenizer(), (EOS,)), REQUESTS[:1], max_new_tokens=1)
    rounded = sampled(sampler, REQUESTS[:1], max_new_tokens=1)
    for key, rollout in rounded.items():
        assert rollout.token_confidence.dtype == np.float32
        np.testing.assert_allclose(rollout.token_confidence, exact[key].token_confidence, rtol=0.03)
        assert rollout.token_confidence.tolist() != exact[key].token_confidence.tolist()


@pytest.mark.parametrize("static", [False, True])
def test_many_tokens_grow_every_buffer(static: bool) -> None:
    model = build().eval()
    (rollout,) = sampled(
        TransformersSampler(model, tokenizer(), (), static=static),
        [request("1", "a", [0])],
        max_new_tokens=300,
    ).values()
    ids = torch.tensor([[*request("1", "a", [0]).prompt_ids, *rollout.token_ids.tolist()]])
    with torch.no_grad():
        logprob = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1)
    expected = logprob.gather(-1, ids[0, 1:, None])[:, 0].numpy()
    np.testing.assert_allclose(rollout.token_logprob, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("prompt", "samples", "settings", "words"),
    [
        ((), (0,), {}, ["'q'", "no tokens"]),
        ((4,), (), {}, ["'q'", "no samples"]),
        ((4,) * 500, (0,), {"max_new_tokens": 100}, ["500", "100", "512", "--max-new-tokens 12"]),
        ((4,) * 600, (0,), {}, ["600", "512", "shorten the prompt"]),
        ((4, 99), (0,), {}, ["99", "vocabulary"]),
    ],
)
def test_refusals_name_the_question_the_numbers_and_the_flag(
    prompt: tuple[int, ...], samples: tuple[int, ...], settings: dict[str, Any], words: list[str]
) -> None:
    sampler = TransformersSampler(build(), tokenizer(), (EOS,))
    with pytest.raises(InputError) as caught:
        sampler.sample([SampleRequest("q", prompt, samples)], Sampling(**{"max_new_tokens": 5, **settings}))
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top-p"),
        ({"top_k": -1}, "top-k"),
        ({"max_new_tokens": 0}, "max-new-tokens"),
        ({"k": 0}, "k: "),
        ({"batch_size": 0}, "batch-size"),
        ({"stop": ("",)}, "--stop"),
    ],
)
def test_settings_out_of_range_name_their_flag(settings: dict[str, Any], flag: str) -> None:
    with pytest.raises(InputError, match=flag):
        load_config(GenerateConfig, overrides={"model": "m", "questions": "q", **settings})


@pytest.mark.gpu
@pytest.mark.parametrize("autocast_dtype", [None, torch.bfloat16])
def test_cuda_graphs_change_nothing(autocast_dtype: torch.dtype | None) -> None:
    """Long enough for several graphs: the cache grows, and the batch is halved more than once."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = build().cuda()
    options: dict[str, Any] = {"autocast_dtype": autocast_dtype}
    asked = [request("12+3=", "a", range(40)), request("7*8-100=", "b", range(40))]
    plain = sampled(
        TransformersSampler(model, tokenizer(), (EOS,), static=False, **options), asked, max_new_tokens=300
    )
    graphs = sampled(TransformersSampler(model, tokenizer(), (EOS,), **options), asked, max_new_tokens=300)
    same = [graphs[key].token_ids.tolist() == rollout.token_ids.tolist() for key, rollout in plain.items()]
    # Kernels round differently: with bfloat16 now and then a token falls on the other side.
    assert np.mean(same) == 1 if autocast_dtype is None else np.mean(same) > 0.3
    if autocast_dtype is None:
        for key, rollout in plain.items():
            np.testing.assert_allclose(graphs[key].token_logprob, rollout.token_logprob, atol=1e-4)
        on_cpu = sampled(TransformersSampler(model.cpu(), tokenizer(), (EOS,)), asked, max_new_tokens=300)
        same = [
            on_cpu[key].token_ids.tolist() == rollout.token_ids.tolist() for key, rollout in plain.items()
        ]
        assert np.mean(same) > 0.9


def test_held_requests_keep_their_places_and_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = TransformersSampler(build(), tokenizer(), (EOS,))
    settings = Sampling(max_new_tokens=12, seed=5, batch_size=4)
    whole = {rollouts[0].query_id: rollouts for rollouts in sampler.sample(REQUESTS, settings)}
    batches: list[list[str]] = []
    decode = sampler._decode

    def seen(rows: Any, *rest: Any) -> Any:
        batches.append([row.request.query_id for row in rows])
        return decode(rows, *rest)

    monkeypatch.setattr(sampler, "_decode", seen)
    requests = [dataclasses.replace(item, held=item.query_id != "d") for item in REQUESTS]
    assert list(sampler.sample(requests, settings)) == [whole["d"]]
    assert batches == [["a", "d", "d", "b"]]  # whole, of the four that are cut from ccccaaaaaddbbb
