"""Optional speed: Triton kernels of decoding, update and statistics, each beside its plain twin.

The kernels need Triton and a CUDA device. ``dttrl.sampling.transformers`` and ``dttrl.training.policy`` take
them for the models that ``architecture`` knows, and the plain code elsewhere. ``decode_forward`` is the model
with its fixed cache and one CUDA graph per batch size, ``update_forward`` the model of the update.
"""
