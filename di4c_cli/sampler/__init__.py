"""Samplers: from noise x_1 to data x_0, exact in distribution and independent of the batch.

`loop` holds the sampling loop, `plan` every choice it follows, `steps`, `confidence` and `tau` its steps.
"""
