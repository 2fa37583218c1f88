"""Memory stacks: made of a text or an object, and installed on a device."""
