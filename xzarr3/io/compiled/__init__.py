"""The executor's loops as compiled code: many chunks a call, without Python's lock.

numba compiles the loops on first use and caches them on disk. The extra ``fast`` installs it; without it, the
Python executor in :mod:`xzarr3.io` does the same work. Compiled code handles the common cases of chunks in
files. It reports each stored unit that it does not handle, and the Python executor reads or writes these, so
that all errors have one text.

This package knows addresses, sizes and file names, but no documents and no indices. Only its own modules
import numba, and only once a read or write is large enough.
"""
