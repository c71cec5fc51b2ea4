"""Measured comparisons with peers; run as modules, for instance ``python -m benchmarks.skeleton_gpu``."""
