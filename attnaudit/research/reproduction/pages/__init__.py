"""The text of the pages on papers, and of the terminal."""
