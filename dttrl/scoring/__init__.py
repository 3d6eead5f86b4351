"""Rollouts -> answers and confidences -> votes: files of every stage, as streams."""
