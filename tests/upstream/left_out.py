"""Tests of transformers that are not run on our models, by the beginning of their name, and why."""

LEFT_OUT: dict[str, str] = {}
