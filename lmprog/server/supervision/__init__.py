"""Keeps one runtime process alive for a gateway: when it is restarted, and how."""
