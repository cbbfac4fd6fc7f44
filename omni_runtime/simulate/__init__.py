"""The core under load without a device: requests of a trace, executors that answer from learned prices and paces, and what
came of it."""
