"""Where the rows are: never sees another site, and never imports the hub."""

# It defines `Model.replies`, which needs all of the site.
import epvi.site.tasks.group_summary
import epvi.site.tasks.predictive  # noqa: F401
