"""The mixture variable λ: its configuration, its prior, its encoder and the ways it enters a network."""
