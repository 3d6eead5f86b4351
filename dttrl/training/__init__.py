"""Test-time reinforcement learning in process: the loop, the policy, checkpoints and evaluation."""
