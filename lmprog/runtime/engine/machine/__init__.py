"""What this machine gives to any engine: memory for keys, values and weights, cores, torch."""
