"""Cost of encoders: time, memory and operations, and the limits of the machine."""
