"""What `epvi show` prints of each kind of file: one file per kind, and one for each part that several kinds have."""
