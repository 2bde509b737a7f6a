"""What metadata say, whatever the format of the documents."""
