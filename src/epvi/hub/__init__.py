"""Where the fits meet: this wing never sees a row, and never imports the site."""

from epvi.hub.combine import combine
from epvi.hub.posterior import Posterior, Summary

__all__ = ["Posterior", "Summary", "combine"]
