"""A test double of sglang: the real one's options, log lines, endpoints and ways to die, and no model.

Built by tests/stub/build.py into a wheel named `sglang`, in the version that it is to play.
"""
