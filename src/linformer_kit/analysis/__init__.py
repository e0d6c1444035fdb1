"""What goes on inside a model."""
