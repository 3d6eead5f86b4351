"""Test-time reinforcement learning without labels: the library behind the ``dttrl`` command.

Importing this package is cheap: torch, transformers, pomegranate and matplotlib are loaded by the
functions that need them.
"""

__version__ = "0.1.0"
