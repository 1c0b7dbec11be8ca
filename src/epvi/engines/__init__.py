"""Where tasks run: worker processes of this machine."""
