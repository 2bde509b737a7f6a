"""Reading and writing the elements of arrays: selection, projection on the grid, plan, byte ranges, executor.

Knows nothing of metadata documents, formats or groups.
"""
