"""The paper and what goes beyond it, as pure functions over arrays."""
