"""Label-free test-time reinforcement learning of language models: DistriTTRL (arXiv:2603.16500) and beyond.

The rooms, in the order in which data flows through them; each imports only from those above it:

=============  ==========================================================================
``data``       questions and rollouts as files: schemas, tables, checks, streams
``answers``    text -> answer, and which answers are the same
``method``     confidence, mixture, history, voting, labels, diversity, advantages, loss
``settings``   every setting, written once
``scoring``    rollouts -> answers and confidences -> votes
``kernels``    optional speed on CUDA
``sampling``   questions -> rollouts: transformers, vLLM, servers
``interop``    other tools' rollouts -> rollouts
``training``   the loop, the policy, the run folder; OpenRLHF at scale
``analysis``   runs and rollouts -> tables, figures, reports
=============  ==========================================================================

Importing this package is cheap: torch, transformers, pomegranate, pandas and matplotlib are loaded by the
functions that need them.
"""

__version__ = "0.1.0"
