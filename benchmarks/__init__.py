"""Benchmark suites, the runner that times them and the report made of its results."""
