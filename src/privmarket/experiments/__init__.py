"""What is measured and shown: one file per table or figure."""
