"""Where the fits meet: this wing never sees a row, and never imports the site."""
