"""Log-probabilities of Llama-family models for training, with fused kernels and without whole logits.

``log_probs`` takes log-probabilities from hidden states in chunks; ``body`` computes the hidden states, with
the kernels of ``kernels`` as the autograd functions of ``functions``.
"""
