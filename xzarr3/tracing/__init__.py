"""Counting of requests: stores report one event for each request, and the trace and the log listen."""
