"""Paper-specific analyses of trained runs."""
