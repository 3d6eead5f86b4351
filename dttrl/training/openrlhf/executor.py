"""The agent executor that OpenRLHF loads beside each vLLM engine: a rollout with its token statistics.

Asks vLLM for the k largest log-probabilities of every token (raw: before temperature and truncation) and
reduces them where they arise, so that four float32 numbers a token travel and not k pairs.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from openrlhf.utils.agent import AgentExecutorBase


class AgentExecutor(AgentExecutorBase):
    """Continues a prompt once; OpenRLHF finds the class by this name."""

    async def execute(
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """Return OpenRLHF's response fields, with ids and statistics (4, T) under ``dttrl``.

        ``label`` is the JSON that :func:`dttrl.training.openrlhf.flags.prompt_row` wrote: the question's id
        and prompt ids, and k. The prompt is taken from there, so that it is the one of the in-process engine.
        """
        from dttrl.sampling.vllm.engine import flat_statistics

        row = json.loads(label)
        prompt_ids: list[int] = row["prompt_ids"]
        params = copy.deepcopy(sampling_params)
        params.logprobs, params.flat_logprobs = row["k"], True
        params.max_tokens = min(params.max_tokens or max_length, max_length - len(prompt_ids))
        result = await llm_engine.generate(prompt_ids, params)
        output = result.outputs[0]
        token_ids = list(output.token_ids)
        statistics = flat_statistics(output.logprobs, len(token_ids))
        ids = prompt_ids + token_ids
        return {
            "prompt": prompt,
            "label": label,
            "images": images,
            "mm_train_inputs": None,
            "observation_tokens": ids,
            "action_ranges": [(len(prompt_ids), len(ids))],
            "rollout_log_probs": None,
            "truncated": output.finish_reason == "length",
            # Set for the whole step at once, once all rollouts of all its questions are there.
            "reward": 0.0,
            "scores": 0.0,
            "extra_logs": {},
            "dttrl": {
                "token_ids": token_ids,
                "statistics": statistics,
                "finish_reason": "length" if output.finish_reason == "length" else "stop",
            },
        }
