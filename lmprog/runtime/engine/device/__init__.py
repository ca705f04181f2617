"""The engine on a device: our CUDA kernels, what they are given, and the two ways to run them.

`driver` is the border: `cuda_driver` runs kernels on a GPU, `emulated_driver` runs the same sources
on the processor.
"""
