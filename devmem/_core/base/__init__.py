"""What every other room stands on: settings, scopes, shapes and strides, arguments, the device handle."""
