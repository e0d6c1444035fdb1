"""What encoders learn: studies of many small pretrainings."""
