"""Exchange with other libraries and processes: DLPack, array interfaces, IPC."""
