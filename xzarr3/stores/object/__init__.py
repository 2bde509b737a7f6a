"""Object storage services and web servers as stores, accessed with obstore."""
