"""What can be said of the GPU's kernels: without one (compile table, model), and with one."""
