"""Log-probabilities of Llama-family models for training, with fused kernels and without whole logits.

``log_probs`` takes log-probabilities from hidden states in chunks; ``update_forward`` computes the hidden
states, with the kernels of ``update_kernels`` as autograd functions.
"""
