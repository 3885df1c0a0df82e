"""Learned mechanisms. The only auction code that imports torch, and only where a network is trained or run."""
