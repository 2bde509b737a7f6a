"""Object storage and web servers as stores, by obstore."""
