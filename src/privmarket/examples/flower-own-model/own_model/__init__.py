"""A market around your own PyTorch module."""
