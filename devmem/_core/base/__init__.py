"""The ground floor of the core: settings, scopes, shapes and strides, arguments, the device handle."""
