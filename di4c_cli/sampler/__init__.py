"""Samplers: the paper's walks from noise to data, exact in law and independent of the batch."""
