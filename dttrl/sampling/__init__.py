"""Drawing rollouts from a language model, and the models themselves.

``base`` and ``prompts`` are light; ``models``, ``gguf``, ``transformers`` and what they use import torch.
Nothing is imported here, so that ``import dttrl.sampling`` loads neither.
"""
