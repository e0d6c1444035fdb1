"""Measurements: tables and figures of the paper, time, memory and quality."""
