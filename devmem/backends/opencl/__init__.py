"""The backend of OpenCL devices with shared virtual memory, by way of pyopencl."""
