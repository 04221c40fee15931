"""Arrays in temporary files, for numbers that memory may not hold, and the folders of these files."""
