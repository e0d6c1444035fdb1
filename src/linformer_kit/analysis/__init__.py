"""Analysis of models: singular values of attention, time and memory."""
