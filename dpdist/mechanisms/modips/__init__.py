"""MODIPS: sufficient statistics under noise, a posterior given them, and records from it ([M]; METHODS §8)."""
