"""A regression on a table of patients."""
