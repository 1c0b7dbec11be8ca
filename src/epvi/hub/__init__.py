"""Where the fits meet: this wing never sees a row, and never imports the site."""

from epvi.hub.combine import combine
from epvi.hub.conflict import Conflict
from epvi.hub.posterior import Posterior, Summary

__all__ = ["Conflict", "Posterior", "Summary", "combine"]
