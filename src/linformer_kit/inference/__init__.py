"""Trained models at work: classifying texts and filling masks."""
