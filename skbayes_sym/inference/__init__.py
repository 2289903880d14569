"""How beliefs are updated: pure functions over explicit states."""
