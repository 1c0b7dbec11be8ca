"""Where the rows are: this wing never imports the hub, and the hub never imports it."""
