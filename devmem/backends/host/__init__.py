"""Devices made of host memory."""
