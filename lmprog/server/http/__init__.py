"""HTTP: the listener, the middleware, bodies, errors, event streams, limits. Knows no dialect."""
