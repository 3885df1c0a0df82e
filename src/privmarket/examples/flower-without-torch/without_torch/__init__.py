"""A market without torch: softmax regression in NumPy, and with scikit-learn."""
