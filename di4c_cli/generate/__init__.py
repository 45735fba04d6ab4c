"""From a user's request to samples on the screen or the disk; the sampling loop itself is in `sampler`."""
