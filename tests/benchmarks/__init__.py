"""The benchmarks count right; how fast anything is, is no test."""
