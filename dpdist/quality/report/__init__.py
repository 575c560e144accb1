"""The confidential report page: its material, its plots and its sections."""
