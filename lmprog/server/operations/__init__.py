"""Operating a server: the supervised runtime, health, metrics, tracing."""
