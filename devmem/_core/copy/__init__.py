"""Copies between host and device, on one device and between devices: plans, driver calls, staging, statistics."""
