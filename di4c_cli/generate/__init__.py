"""From what a user asks for to samples on the screen or the disk; the walks themselves are in `sampler`."""
