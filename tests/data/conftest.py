"""The scripts here need what the tests do not have: pytest leaves them alone."""

collect_ignore_glob = ["*.py"]
