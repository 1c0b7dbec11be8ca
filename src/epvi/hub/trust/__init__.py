"""The certificate: draws to score, importance weights, a score test, and the verdict."""
