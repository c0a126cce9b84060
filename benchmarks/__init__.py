"""Benchmarks: what the library promises, measured on real models and printed."""
