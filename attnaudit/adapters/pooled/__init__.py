"""Models that pool hidden states with attention."""
