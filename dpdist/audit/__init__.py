"""For the privacy officer, and confidential: what records lose, what is proven of it, and what attacks find."""
