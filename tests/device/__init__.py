"""Proofs about GPUs on a machine without one."""
