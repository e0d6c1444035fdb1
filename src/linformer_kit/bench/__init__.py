"""What the operator costs on a machine, and what others cost there."""
