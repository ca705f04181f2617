"""The page in a real browser, where there is one: Debian's `chromium` and `chromium-driver`, driven
by selenium.
"""
