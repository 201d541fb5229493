"""Programs of the project that no part of the product imports."""
