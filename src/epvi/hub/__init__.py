"""Where the fits meet: never sees a row, and never imports the site."""
