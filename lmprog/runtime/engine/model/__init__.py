"""Checkpoints: what their files say a model is, which weights it has, and how these are read.

Knows numpy, files and names of weights; computes nothing, and imports no torch.
"""
