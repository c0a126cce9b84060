"""Decode prompts under constraints: prompts, engine, distributed run, baselines."""
