"""What identifies code: a hash of everything that a function or class reaches, whatever its comments and its place."""
