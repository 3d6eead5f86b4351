"""Lets OpenRLHF's training run without a GPU: its CUDA calls mean the CPU in every process on this path.

OpenRLHF names CUDA outright. On ``PYTHONPATH`` this module makes those names harmless, one after the other as
the modules that use them are imported: Ray is told that there are GPUs, process groups use Gloo, and new
weights go to vLLM's CPU engine by value where a GPU would share memory. Nothing of dttrl is replaced.
``DTTRL_TEST_GPUS`` says how many "GPUs" Ray sees.
"""

import importlib.machinery
import os
import sys


def in_torch(torch):
    for name in ("set_device", "empty_cache", "synchronize", "current_stream"):
        # A function each: torch tells them apart.
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.current_device = lambda: "cpu"


def in_ray(ray):
    begin = ray.init

    def init(*given, **options):
        options.setdefault("num_gpus", int(os.environ.get("DTTRL_TEST_GPUS", "1")))
        options |= {"num_cpus": 16, "include_dashboard": False, "object_store_memory": 2**28}
        return begin(*given, **options)

    ray.init = init


def in_platform(module):
    module.CpuPlatform.is_sleep_mode_available = lambda self: True


def in_layers(module):
    # Its own way packs a layer's weights and drops them, so that new ones could not be loaded.
    def plain(layer, remove_weight):
        import torch

        layer.cpu_linear = torch.nn.functional.linear

    module.dispatch_cpu_unquantized_gemm = plain


def in_strategy(module):
    mesh = module.init_device_mesh
    module.init_device_mesh = lambda _, *given, **options: mesh("cpu", *given, **options)


def in_states(module):
    module.offload_deepspeed_states = module.reload_deepspeed_states = lambda *_, **__: None


def in_buffer(module):
    class Torch:
        def __getattr__(self, name):
            import torch

            return (lambda *_: torch.device("cpu")) if name == "device" else getattr(torch, name)

    module.torch = Torch()


def in_reductions(module):
    def reduce_tensor(tensor):
        import torch

        data = tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
        # The receiver sets the sixth argument, which is a device for it.
        return by_value, [data, str(tensor.dtype).split(".")[1], list(tensor.shape), None, None, None, None]

    module.reduce_tensor = reduce_tensor


def by_value(data, dtype, shape, *_):
    """Return the tensor that was sent."""
    import torch

    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)


def in_utils(module):
    module.get_physical_gpu_id = lambda: "cpu"


HOOKS = {
    "torch": in_torch,
    "torch.multiprocessing.reductions": in_reductions,
    "ray": in_ray,
    "vllm.platforms.cpu": in_platform,
    "vllm.model_executor.layers.utils": in_layers,
    "openrlhf.utils.deepspeed.deepspeed": in_strategy,
    "openrlhf.utils.deepspeed.deepspeed_utils": in_states,
    "openrlhf.trainer.ppo_utils.replay_buffer": in_buffer,
    "openrlhf.trainer.ray.utils": in_utils,
}


class Hooked(importlib.machinery.PathFinder):
    """Finds the modules of :data:`HOOKS` as usual, and runs their hook after them."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hook = HOOKS.get(name)
        spec = super().find_spec(name, path, target) if hook else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                hook(module)

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Hooked)
