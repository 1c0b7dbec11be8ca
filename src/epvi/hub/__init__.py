"""Where the fits meet: this wing never sees a row, and never imports the site."""

from epvi.hub.agreement.conflict import Conflict
from epvi.hub.posterior.combine import combine
from epvi.hub.posterior.posterior import Posterior
from epvi.hub.posterior.summary import Summary
from epvi.hub.refine.refine import refine
from epvi.hub.trust.certify import Certificate, certify

__all__ = ["Certificate", "Conflict", "Posterior", "Summary", "certify", "combine", "refine"]
