"""What is traded and what is promised: NumPy only, float64, no I/O."""
