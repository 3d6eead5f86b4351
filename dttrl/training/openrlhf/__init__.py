"""Training at scale: OpenRLHF (Ray, vLLM, DeepSpeed) as the runner of the method's labels and advantages.

OpenRLHF's own code stays as it is. ``flags`` says what it is told, ``launch`` starts it in a process of its
own, where ``main`` puts the trainer of ``trainer`` in the place of its own; ``executor`` runs beside the vLLM
engines, and ``controller`` does what the loop of one process does between sampling and update.
"""
