"""Arrays and groups of any stores joined to one that is read lazily.

:mod:`~xzarr3.joined.split` divides a selection among them, :mod:`~xzarr3.joined.array` reads it, and
:mod:`~xzarr3.joined.document` keeps what was joined. What makes datasets fit is in :mod:`xzarr3.xarray`.
"""
