"""Verification of model folders, run folders and exports: `allyouneed verify`."""
