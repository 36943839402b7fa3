"""Computes differential privacy: the noise that a site adds to its sums, and the promise that it keeps."""
