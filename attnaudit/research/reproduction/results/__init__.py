"""The measured rows of tables: where they are kept, and which of them count."""
