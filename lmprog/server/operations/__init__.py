"""Routes for operators: `/health`, `/ready`, `/version`, `/metrics`."""
