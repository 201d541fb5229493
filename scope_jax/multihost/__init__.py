"""Several processes that are one run: how they find, know and watch each other."""
