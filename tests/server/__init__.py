"""Tests of the HTTP gateway: in process over scripted and fake runtimes, and as a real server
before nano.
"""
