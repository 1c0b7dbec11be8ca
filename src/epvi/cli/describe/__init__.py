"""What `epvi show` prints: a file per kind of file that is shown, and one for each part that several kinds have."""
