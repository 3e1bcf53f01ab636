"""Measurements side by side with peers, each with the least that it could take. See docs/benchmarks.md."""
