"""Requests counted: one event a request, told by stores; the trace and the log listen."""
