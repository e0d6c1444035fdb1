"""Analysis of models: singular values, pictures of attention, time and memory."""
