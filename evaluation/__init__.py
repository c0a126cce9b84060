"""Evaluate generated text: metrics, scorers, reports."""
