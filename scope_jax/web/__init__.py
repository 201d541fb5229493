"""HTTP, as client and as server."""
