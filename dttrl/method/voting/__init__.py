"""Voting strategies: one small module each, over arrays, vectorised over a leading axis."""
