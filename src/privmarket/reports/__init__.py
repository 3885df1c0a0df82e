"""What commands of the product draw and write: figures, comparison tables, the demo and its HTML report."""
