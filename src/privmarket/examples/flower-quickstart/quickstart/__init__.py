"""A market on handwritten digits."""
