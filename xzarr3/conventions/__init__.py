"""Conventions of xarray for stored data: which values are missing, and how attributes hold NaN.

They are not part of any format. Nothing here imports xarray or makes requests to a store.
"""
