"""Programs around code that a model has written: namespaces, limits, and the process in which the code runs.

They import nothing but the standard library and each other, as they run in processes of their own, without JAX.
"""
