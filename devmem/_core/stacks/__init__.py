"""Memory stacks: how a text or an object becomes one."""
