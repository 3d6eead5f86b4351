"""Readers of the rollouts that other tools save, one module a format; ``formats`` lists them.

A reader turns one file into a stream of ``fields.Record``, one a rollout. ``importing`` brings the records
of all files together question by question and writes our ROLLOUTS table; ``acceptance`` does so on the way
for commands that are given such files directly. No tool that made a file is needed to read it.
"""
