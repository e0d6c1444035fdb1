"""What encoders cost: time, memory and operations, and the limits of the machine."""
