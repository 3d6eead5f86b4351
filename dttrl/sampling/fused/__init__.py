"""Decoding of Llama-family models with fused kernels, a fixed cache and one CUDA graph a batch size.

Needs Triton and a CUDA device; ``dttrl.sampling.transformers`` takes it where it applies and the general path
elsewhere. ``architecture`` says to which models it applies, ``decode_kernels`` and ``logit_kernels`` (on
``row_kernels``) hold the kernels, ``decode_forward`` the model and its cache.
"""
