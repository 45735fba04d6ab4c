"""Readers of files that others wrote: every reader has limits and turns what it cannot read into one sentence."""
