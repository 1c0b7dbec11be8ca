"""Studies between sites: study.toml, and the models that it names."""
