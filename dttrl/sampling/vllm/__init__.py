"""Sampling with vLLM: the engine, the statistics computed inside it, several engines at once.

Importing this package imports neither vLLM nor Ray; opening an engine does.
"""
