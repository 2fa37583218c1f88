"""Devices: choosing a backend, opening and closing a device, and the services of an open one."""
