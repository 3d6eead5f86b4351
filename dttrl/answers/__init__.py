"""From the text of a rollout to the class of its answer: extraction, equivalence, grading.

:mod:`~dttrl.answers.extraction` finds the final answer in a completion,
:mod:`~dttrl.answers.equivalence` compares two answers exactly and without any algebra system, and
:mod:`~dttrl.answers.grading` adds algebra in a worker process and groups the answers of one question
into classes.
"""
