"""Mathematical answers: reading them, comparing them, and the program in which both are done. Imports only SymPy."""
