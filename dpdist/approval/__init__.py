"""Approval by the custodian: gates on errors, measured under noise, and releases that are held for a decision."""
