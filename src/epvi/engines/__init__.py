"""Execution of tasks: a pool of worker processes on this machine."""
